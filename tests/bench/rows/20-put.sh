# SPDX-License-Identifier: Apache-2.0
# Single calls on one node: put and free, share. First the client runs on core 0, daemon and echo on core 1; then all run on
# core 0, where no idle core has to be woken and only the work itself counts.

if wanted put; then
  place 1 "$pid_a"
  measure 0 control local '' 25 "$dir/a.sock" "$dir/echo.sock"
  place 0 "$pid_a"
  place 0 "$pid_echo"
  measure 0 control local _one_core 25 "$dir/a.sock" "$dir/echo.sock"
  place 1 "$pid_echo"
fi
