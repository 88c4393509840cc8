# SPDX-License-Identifier: Apache-2.0
# Rounds, as run collects them, to a table on stdout and a list in `json`. What counts is the median of the rounds' ratios: both
# sides of a round were measured right after each other, so that what else the machine did fell on both.
function sort(list, n,    i, j, value) {
  for (i = 2; i <= n; i++) {
    value = list[i]
    for (j = i - 1; j >= 1 && list[j] > value; j--) list[j + 1] = list[j]
    list[j + 1] = value
  }
}
function median(list, n) { sort(list, n); return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
$1 == "note" { notes[$2] = $3; next }
{
  if (NF != 6 || $5 + 0 < 0 || $6 + 0 <= 0) { printf "bench: not a round: %s\n", $0; bad = 1; exit 1 }
  if (!($1 in count)) { order[++rows] = $1; unit[$1] = $2; better[$1] = $3; goal[$1] = $4 }
  i = ++count[$1]; ours[$1, i] = $5; reference[$1, i] = $6
}
END {
  if (bad) exit 1
  printf "\n%-44s %5s %10s %10s %7s %15s  %s\n", "", "unit", "ours", "reference", "ratio", "of the rounds", "goal"
  print "[" > json
  for (r = 1; r <= rows; r++) {
    name = order[r]; n = count[name]
    for (i = 1; i <= n; i++) { a[i] = ours[name, i]; b[i] = reference[name, i]; c[i] = a[i] / b[i] }
    x = median(a, n); y = median(b, n); ratio = median(c, n)
    verdict = ""; pass = "null"
    if (goal[name] != "null") {
      pass = (better[name] == "lower" ? ratio <= goal[name] : ratio >= goal[name]) ? "true" : "false"
      verdict = (better[name] == "lower" ? "<= " : ">= ") goal[name] (pass == "true" ? "  pass" : "  MISSED")
      judged++; passed += pass == "true"
    }
    printf "%-44s %5s %10.4g %10.4g %7.3f %7.3f-%-7.3f  %s\n", name, unit[name], x, y, ratio, c[1], c[n], verdict
    if (name in notes) printf "    %s\n", notes[name]
    printf "  {\"name\": \"%s\", \"unit\": \"%s\", \"ours\": %.6g, \"reference\": %.6g, \"ratio\": %.4g, ", \
      name, unit[name], x, y, ratio > json
    printf "\"goal\": %s, \"better\": \"%s\", \"pass\": %s, \"rounds\": %d, \"least\": %.4g, \"most\": %.4g, \"note\": \"%s\"}%s\n", \
      goal[name], better[name], pass, n, c[1], c[n], notes[name], r < rows ? "," : "" > json
  }
  print "]" > json
  printf "\n%d of %d goals met\n", passed, judged
}
