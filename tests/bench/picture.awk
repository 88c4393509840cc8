# SPDX-License-Identifier: Apache-2.0
# build/bench.json to an SVG: bandwidth over size, ours and references, both axes logarithmic. One row of the JSON is one line.
function field(key,    s) {
  s = $0
  if (!sub(".*\"" key "\": \"?", "", s)) return ""
  sub("[\",}].*", "", s)
  return s
}
function bytes(label) {
  return label * (label ~ /K$/ ? 1024 : label ~ /M$/ ? 1048576 : label ~ /G$/ ? 1073741824 : 1)
}
function log2(x) { return log(x) / log(2) }
function x_of(size) { return left + (log2(size) - log2(x_min)) / (log2(x_max) - log2(x_min)) * width }
function y_of(rate) { return top + height - (log2(rate) - log2(y_min)) / (log2(y_max) - log2(y_min)) * height }
function add(series, size, rate,    i) {
  if (rate <= 0) return
  if (!(series in n)) order[++n_series] = series
  i = ++n[series]; xs[series, i] = size; ys[series, i] = rate
  if (size < x_min) x_min = size
  if (size > x_max) x_max = size
  if (rate < y_min) y_min = rate
  if (rate > y_max) y_max = rate
}
function draw(series,    i, points, dash) {
  dash = series ~ /^ours/ ? "" : " stroke-dasharray=\"6 4\""
  for (i = 1; i <= n[series]; i++) points = points sprintf("%.1f,%.1f ", x_of(xs[series, i]), y_of(ys[series, i]))
  printf "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2.5\"%s points=\"%s\"/>\n", color[series], dash, points
  for (i = 1; i <= n[series]; i++)
    printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>%s, %s: %.2f GB/s</title></circle>\n", \
      x_of(xs[series, i]), y_of(ys[series, i]), color[series], series, size_name(xs[series, i]), ys[series, i]
}
function size_name(size) {
  return size >= 1073741824 ? size / 1073741824 " GiB" : size >= 1048576 ? size / 1048576 " MiB" : size / 1024 " KiB"
}
BEGIN {
  left = 70; top = 50; width = 620; height = 380; x_min = y_min = 1e30
  color["ours: copy on one node"] = "#b3541e"; color["best copy by hand"] = "#e0a27c"
  color["ours: fetch between nodes, 32 in flight"] = "#1b5e9e"; color["ucx_perftest, 32 in flight"] = "#7fb2e0"
  color["plain TCP socket, 32 ahead"] = "#2f8f5b"
  color["ours: fetch between nodes, one in flight"] = "#6a3d9a"; color["plain TCP socket, one at a time"] = "#b79bd4"
}
/"name"/ {
  name = field("name"); ours = field("ours") + 0; reference = field("reference") + 0
  label = name
  sub(/^[a-z]*_/, "", label)
  sub(/_.*/, "", label)
  if (name ~ /^copy_[0-9]+[KMG]$/) {
    add("ours: copy on one node", bytes(label), ours)
    add("best copy by hand", bytes(label), reference)
  } else if (name ~ /^fetch_[0-9]+[KMG]$/) {
    add("ours: fetch between nodes, 32 in flight", bytes(label), ours)
    add("ucx_perftest, 32 in flight", bytes(label), reference)
  } else if (name ~ /^fetch_[0-9]+[KMG]_by_socket$/)
    add("plain TCP socket, 32 ahead", bytes(label), reference)
  else if (name ~ /^fetch_[0-9]+[KMG]_one_in_flight_by_socket$/) {
    add("ours: fetch between nodes, one in flight", bytes(label), ours)
    add("plain TCP socket, one at a time", bytes(label), reference)
  }
}
END {
  print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 500\" font-family=\"sans-serif\" font-size=\"13\">"
  print "<rect width=\"1000\" height=\"500\" fill=\"white\"/>"
  printf "<text x=\"%d\" y=\"28\" font-size=\"17\" font-weight=\"bold\">Bandwidth over size</text>\n", left
  if (n_series == 0) {
    print "<text x=\"70\" y=\"80\">No row of this run has a bandwidth over several sizes.</text>\n</svg>"
    exit
  }
  x_min = 2 ^ int(log2(x_min)); x_max = 2 ^ int(log2(x_max) + 0.999); if (x_max <= x_min) x_max = 2 * x_min
  for (y = 1 / 64; y * 2 <= y_min; y *= 2) { }
  y_min = y
  for (y = y_min * 2; y < y_max; y *= 2) { }
  y_max = y
  for (size = x_min; size <= x_max; size *= 4) {
    x = x_of(size)
    printf "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#e4e4e4\"/>\n", x, top, x, top + height
    printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x, top + height + 20, size_name(size)
  }
  for (rate = y_min; rate <= y_max; rate *= 2) {
    y = y_of(rate)
    printf "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#e4e4e4\"/>\n", left, y, left + width, y
    printf "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", left - 8, y + 4, rate
  }
  printf "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#888\"/>\n", left, top, width, height
  printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">size of one object</text>\n", left + width / 2, top + height + 45
  printf "<text x=\"20\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 20 %d)\">GB/s (1e9 bytes a second)</text>\n", \
    top + height / 2, top + height / 2
  for (i = n_series; i >= 1; i--) draw(order[i])
  for (i = 1; i <= n_series; i++) {
    y = top + 14 + (i - 1) * 24
    printf "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2.5\"%s/>\n", left + width + 16, y, \
      left + width + 46, y, color[order[i]], order[i] ~ /^ours/ ? "" : " stroke-dasharray=\"6 4\""
    printf "<text x=\"%d\" y=\"%d\" font-size=\"12\">%s</text>\n", left + width + 52, y + 4, order[i]
  }
  print "</svg>"
}
