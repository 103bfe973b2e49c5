"""Does what the plan says: kills, freezes, restarts, injects; and takes back what is for a time."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from chaos.actions import Action
from chaos.processes import is_running, of_role, send
from chaos.service import Service
from chaos.supervisor import Supervisor
from chaos.workplace import Workplace

# How long a victim is waited for: a driver that was killed has to come back first.
_VICTIM_SECONDS = 60.0
_NOTICE_SECONDS = 5.0
_LOOK_SECONDS = 0.2


class Killer:
    """Carries out actions, one after the other; what lasts goes on beside the next ones."""

    def __init__(
        self,
        place: Workplace,
        service: Service,
        supervisor: Supervisor,
        meanwhile: Callable[[], None],
    ) -> None:
        self._place = place
        self._service = service
        self._supervisor = supervisor
        # Called while a victim is waited for.
        self._meanwhile = meanwhile
        self._began = time.monotonic()
        # Frozen processes, with the time of their end.
        self._frozen: list[tuple[float, psutil.Process]] = []
        self.counts: Counter[str] = Counter()
        self.missed = 0
        self.last = "-"

    def carry_out(self, action: Action) -> None:
        """Do it now."""
        match action.kind:
            case "kill worker" | "kill agent" | "kill executor":
                did = self._kill(action)
            case "kill reader":
                did = self._kill_reader(action)
            case "kill driver":
                did = self._kill_driver()
            case "freeze agent":
                did = self._freeze(action)
            case "restart service":
                self._service.restart(action.seconds)
                did = f"for {action.seconds:.1f} s"
            case "stop query":
                is_stopped = self._wait_active() and self._supervisor.stop_query()
                did = "in order" if is_stopped else ""
            case _:
                did = self._inject(action)
        if did:
            self.counts[action.label] += 1
        else:
            self.missed += 1
        self._note(f"{action.label} {did or '(nobody there)'}")

    def _note(self, text: str) -> None:
        self.last = text
        with (self._place.logs / "actions.log").open("a") as log:
            clock = time.strftime("%H:%M:%S")
            log.write(f"{clock} {time.monotonic() - self._began:7.1f} s  {text}\n")

    def end_due(self, *, all_of_them: bool = False) -> None:
        """Take back what has lasted long enough."""
        now = time.monotonic()
        due = [one for one in self._frozen if all_of_them or one[0] <= now]
        for one in due:
            self._frozen.remove(one)
            send([one[1]], signal.SIGCONT)
            self._note(f"agent {one[1].pid} goes on")
        self._service.end_faults(all_of_them=all_of_them)

    def _victim(self, action: Action) -> psutil.Process | None:
        role = action.kind.split()[1]

        def look() -> list[psutil.Process]:
            return [one for one in of_role(self._place, role) if is_running(one)]

        found = self._wait(look)
        return action.choose(found) if found else None

    def _wait(self, look: Callable[[], Any], seconds: float = _VICTIM_SECONDS) -> Any:
        end = time.monotonic() + seconds
        while not (found := look()) and time.monotonic() < end:
            self._meanwhile()
            time.sleep(_LOOK_SECONDS)
        return found

    def _wait_active(self) -> bool:
        return bool(self._wait(lambda: self._supervisor.is_active))

    def _kill(self, action: Action) -> str:
        victim = self._victim(action)
        if victim is None:
            return ""
        if action.kind == "kill agent":
            self._keep_log(victim)
        send([victim], signal.SIGKILL)
        return f"{victim.pid}"

    def _kill_reader(self, action: Action) -> str:
        """Kill the source's process on the driver, and stop the query if it does not end by itself.

        It does between two batches. The tasks of a batch that is being run fail again and again,
        and of these a query of ours stands very many.
        """
        did = self._kill(action)
        if did and self._wait(lambda: not self._supervisor.is_active, _NOTICE_SECONDS) is False:
            self._supervisor.stop_query()
        return did

    def _keep_log(self, agent: psutil.Process) -> None:
        """Save an agent's log from its successor in the same directory."""
        with contextlib.suppress(psutil.Error, OSError):
            log = Path(agent.cmdline()[-1]) / "agent.log"
            shutil.copy(log, self._place.logs / f"agent-{agent.pid}-killed.log")

    def _kill_driver(self) -> str:
        if not self._wait_active():
            return ""
        victims = of_role(self._place, "driver", "driver JVM")
        send(victims, signal.SIGKILL)
        return " ".join(str(victim.pid) for victim in victims)

    def _freeze(self, action: Action) -> str:
        victim = self._victim(action)
        if victim is None:
            return ""
        send([victim], signal.SIGSTOP)
        self._frozen.append((time.monotonic() + action.seconds, victim))
        return f"{victim.pid} for {action.seconds:.1f} s"

    def _inject(self, action: Action) -> str:
        fault = action.fault
        if fault is None:
            return ""
        self._service.inject(fault, action.seconds)
        often = f"{fault.count} times" if fault.count else f"probability {fault.probability:.2f}"
        return f"{fault.method} {fault.code} {often}, for {action.seconds:.1f} s"
