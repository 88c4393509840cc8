# SPDX-License-Identifier: Apache-2.0
# The cost of an idle daemon: its memory, and its processor time (linked to another daemon, so with pings).

resident_mib() { awk '/^VmRSS:/ { printf "%.3f", $2 / 1024 }' "/proc/$1/status"; }
processor_ms() { cat "/proc/$1"/task/*/schedstat | awk '{ sum += $1 } END { printf "%.3f", sum / 1e6 }'; }

measure_idle() {
  local before after
  row idle_memory MiB lower null "$(resident_mib "$pid_a")" "$(resident_mib "$pid_echo")"
  note idle_memory 'resident, before any load; reference: echo, which does nothing else'
  timeout 30 "$build/tests/bench/control" peers "" 1 "$dir/b.sock" "$dir/echo.sock" "$dir/a.sock" "$port_echo" >/dev/null ||
    fail control # links them
  before=$(processor_ms "$pid_a")
  sleep 3 # is what is measured
  after=$(processor_ms "$pid_a")
  row idle_processor ms lower 0.005 "$(awk "BEGIN { print $after - $before }")" 3000
  note idle_processor 'of three seconds'
}
if wanted idle; then measure_idle; fi
