"""Stands in for the measuring process: the same events, without torch, and a time that never comes twice."""

import time

from hypatia_lab.bench import sessions

plan, emit = sessions.child_plan()
told = {"clock": "hot", "status": "ok", "reason": "", "error": 1e-7, "max_error": 1e-6, "samples_us": [], "calls": 1}
for index, group in plan["groups"]:
    for name in group["variants"]:
        emit("begin", what=[index, name])
        time.sleep(0.01)
        row = told | {"median_us": 1 + time.time() % 1000, "sm_mhz": [], "power_w": [], "throttled": False}
        emit("row", group=index, variant=name, **row)
    emit("done", group=index)
