"""What happens in the backward pass while gradient release is on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from . import _C, _clip_guard
from ._numerics import check_entry
from ._release_clipping import NormClipper
from ._release_slot import Slot
from ._state import naming
from ._warn import warn_user

if TYPE_CHECKING:
    from ._optimizer import FlashOptimizer

PreStep = Callable[[Tensor, dict[str, Any]], bool]

_WIDE: Final = (torch.float32, torch.complex64)


class Release:
    """Steps parameters from hooks. The optimizer owns it, and hooks hold it weakly."""

    def __init__(
        self,
        optimizer: FlashOptimizer,
        slots: list[Slot],
        *,
        clipper: NormClipper | None = None,
        accumulate: int = 1,
        accumulate_dtype: torch.dtype | None = None,
        pre_step: PreStep | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        reducer: nn.parallel.DistributedDataParallel | None = None,
    ) -> None:
        self.slots = slots
        self.clipper = clipper
        self.active = True
        self._optimizer = weakref.ref(optimizer)
        self._accumulate = accumulate
        self._accumulate_dtype = accumulate_dtype
        self._pre_step = pre_step
        self._scaler = grad_scaler
        self._reducer = reducer
        self._by_id = {id(slot.param): slot for slot in slots}
        self._measuring: set[int] | None = None
        self._found_nonfinite = False
        self._drop_step = False
        self._stepped_any = False
        self._scale: float | None = None  # of GradScaler, in this step
        self._reduced: list[Slot] = []
        self._warned = False
        self._checked_wrapping = not torch.distributed.is_available()

        release = weakref.ref(self)
        make = _hook if reducer is None else _hook_before_reduction
        for slot in slots:
            slot.add_hook(make(release, slot.place))
        _ACTIVE.add(self)
        _clip_guard.install(released_name)
        weakref.finalize(self, _take_guards_out).atexit = False

    def remove(self) -> None:
        """Removes the hooks; sums of gradients that were not stepped become ``.grad``."""
        self.active = False
        for slot in self.slots:
            slot.remove_hook()
            if slot.buffer is not None:
                slot.param.grad = slot.buffer.to(slot.param.dtype)
        self.slots = []
        self._by_id = {}
        _ACTIVE.discard(self)
        _take_guards_out()
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer._release = None

    @property
    def accumulates(self) -> bool:
        """Whether a step takes more than one gradient of a parameter."""
        return self._accumulate > 1

    def name_of(self, param: Tensor) -> str | None:
        """The name of a parameter of this release, else None."""
        slot = self._by_id.get(id(param))
        return None if slot is None else slot.name

    @torch.no_grad()
    def ready(self, slot: Slot) -> None:
        """A parameter's gradient is complete: measures, accumulates or steps it, and frees it."""
        param = slot.param
        if param.grad is None:
            return
        if self._reducer is None and not self._checked_wrapping:
            self._check_wrapping()
        if self._measuring is not None:
            self._measure(slot, self._measuring)
            return
        self._check_count(slot)
        slot.count += 1
        if self._accumulate_dtype is not None and param.grad.dtype not in _WIDE:
            if slot.buffer is None:
                slot.buffer = param.grad.to(self._accumulate_dtype)
            else:
                slot.buffer.add_(param.grad)
            if slot.count < self._accumulate:
                param.grad = None
        if slot.count == self._accumulate:
            self._step(slot)

    def _check_wrapping(self) -> None:
        """Once, at the first gradient, since a model may be wrapped after release is enabled."""
        if torch.distributed.is_initialized():
            for found in gc.get_objects():
                if not issubclass(type(found), nn.parallel.DistributedDataParallel):
                    continue
                if any(id(param) in self._by_id for param in found.parameters()):
                    raise RuntimeError(
                        "the model is wrapped in DistributedDataParallel, which averages gradients "
                        "only after these hooks; pass the wrapper to enable_gradient_release"
                    )
        self._checked_wrapping = True

    def _check_count(self, slot: Slot) -> None:
        if slot.count < self._accumulate:
            return
        number = "a second gradient" if slot.count == 1 else f"{slot.count + 1} gradients"
        raise RuntimeError(
            f"parameter '{slot.name}' got {number} since the last optimizer.step() or zero_grad(), "
            "and gradient release has stepped it already. Call optimizer.step() or zero_grad() "
            "after each step; to add up gradients of several backward passes, pass their number: "
            "enable_gradient_release(..., accumulate=...). A module that is checkpointed twice in "
            "a backward pass needs use_reentrant=False"
        )

    def _step(self, slot: Slot) -> None:
        optimizer, param = self._optimizer(), slot.param
        group = None if optimizer is None else slot.find_group(optimizer.param_groups)
        if optimizer is None or group is None:
            return  # the optimizer has it no longer
        if not self._drop_step:
            self._step_with(optimizer, slot, group)
        param.grad = None
        slot.buffer = None
        self._stepped_any = True

    def _step_with(self, optimizer: FlashOptimizer, slot: Slot, group: dict[str, Any]) -> None:
        plan, param = slot.plan, slot.param
        if self._pre_step is not None and not self._pre_step(param, group):
            return
        gradient = slot.buffer if slot.buffer is not None else param.grad
        if gradient is None:
            return  # taken by pre_step
        # A plan is made with the parameter's own gradient there: it says what is wrong with it.
        if plan is None or not plan.fits_parameter(group, optimizer.state.get(param, {})):
            plan = slot.plan = optimizer._make_parameter_plan(
                param, slot.group, f"parameter '{slot.name}'", self._scaler is not None
            )
        if group["check_numerics"]:
            check_entry(plan.entries[0], group, optimizer._kind.rule, optimizer._largest)
        if self.clipper is not None and gradient.layout is torch.strided:
            self.clipper.clip(slot.place, gradient)
        _C.set_cpu_threads(torch.get_num_threads())
        skipped = plan.step_parameter(slot.buffer, self._loss_scale())
        if skipped:
            optimizer.skipped_tensors += skipped
            self._found_nonfinite = True

    def _loss_scale(self) -> float:
        if self._scale is None:
            self._scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        return self._scale

    @contextmanager
    def measure(self, clipper: NormClipper) -> Iterator[None]:
        """Backward passes inside measure gradients and drop them; the next step uses the norm."""
        self._measuring = set()
        try:
            yield
        except BaseException:
            clipper.forget()
            raise
        finally:
            self._measuring = None
        norm = clipper.finish_measuring(self._loss_scale())
        if norm is None:
            raise RuntimeError("no gradient was measured; call loss.backward() inside measure()")
        if self._scaler is not None:
            self._drop_step = self._found_nonfinite = not bool(norm.isfinite())

    def _measure(self, slot: Slot, measured: set[int]) -> None:
        gradient = slot.param.grad
        assert self.clipper is not None
        assert gradient is not None
        if slot.place in measured:
            raise RuntimeError(
                f"parameter '{slot.name}' got a second gradient while measuring; the norm of their "
                "sum is not known from both norms. Measure one backward pass, of the summed loss"
            )
        measured.add(slot.place)
        with naming(f"parameter '{slot.name}'"):
            self.clipper.record(slot.place, gradient)
        slot.param.grad = None

    def before_reduction(self, slot: Slot) -> None:
        """A local gradient is complete, which DistributedDataParallel has yet to average."""
        assert self._reducer is not None
        # Set by the forward pass, which is what decides whether gradients will be averaged.
        if not self._reducer.require_forward_param_sync:
            return  # no_sync(): it stays in .grad
        if self._measuring is None:
            self._check_count(slot)
        self._reduced.append(slot)
        _at_end_of_backward(self._behind_reduction)

    def _behind_reduction(self) -> None:
        # DistributedDataParallel queues its last work with its last gradient: after this call was
        # queued, before the one that is queued now.
        if self._reduced:
            _at_end_of_backward(self._release_reduced)

    def _release_reduced(self) -> None:
        slots, self._reduced = self._reduced, []
        for slot in slots:
            self.ready(slot)

    @torch.no_grad()
    def finish_step(self) -> None:
        """``optimizer.step()``: steps what still has a gradient, and starts the next step.

        Raises:
            RuntimeError: GradScaler calls it, and does not belong to this release.
        """
        optimizer = self._optimizer()
        assert optimizer is not None
        self._warn_once()
        scaling = hasattr(optimizer, "found_inf")
        if scaling and self._scaler is None:
            for name in ("grad_scale", "found_inf"):
                delattr(optimizer, name)  # GradScaler would not, and later steps would read them
            raise RuntimeError(
                "gradient release has already stepped the parameters, with gradients that "
                "GradScaler had scaled and nobody has unscaled. Pass the scaler: "
                "enable_gradient_release(..., grad_scaler=scaler)"
            )
        for slot in self.slots:
            if slot.param.grad is not None or slot.buffer is not None:
                self._step(slot)
        if scaling:
            self._report_nonfinite(optimizer)
        self._start_step()

    def _report_nonfinite(self, optimizer: FlashOptimizer) -> None:
        """Tells GradScaler, whose `update` needs an answer, whether a gradient was not finite."""
        assert self._scaler is not None
        found = self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        device = torch.device("cpu")
        ours = torch.full((), float(self._found_nonfinite), device=device)
        found[device] = ours + found[device] if device in found else ours

    def drop(self) -> None:
        """``optimizer.zero_grad()``: drops what is accumulated, and starts the next step."""
        self._warn_once()
        for slot in self.slots:
            slot.buffer = None
        self._start_step()

    def _start_step(self) -> None:
        for slot in self.slots:
            slot.count = 0
        if self._stepped_any:
            if self.clipper is not None:
                self.clipper.finish_step(self._loss_scale())
            self._stepped_any = self._drop_step = self._found_nonfinite = False
        self._scale = None

    def _warn_once(self) -> None:
        if self._warned:
            return
        self._warned = True
        warn_user(
            "gradient release is on: parameters are stepped in the backward pass. "
            "optimizer.step() steps only what still has a gradient, and like zero_grad() begins "
            "the next step (said once)"
        )


_ACTIVE: weakref.WeakSet[Release] = weakref.WeakSet()


def released_name(param: Tensor) -> str | None:
    """The name of a parameter whose gradient is released by any optimizer, else None."""
    for release in _ACTIVE:
        name = release.name_of(param)
        if name is not None:
            return name
    return None


def _take_guards_out() -> None:
    if not _ACTIVE:
        _clip_guard.uninstall()


def _hook(release: weakref.ref[Release], place: int) -> Callable[[Tensor], None]:
    def complete(_: Tensor) -> None:
        owner = release()
        if owner is not None:
            owner.ready(owner.slots[place])

    return _uncompiled(complete)


def _hook_before_reduction(release: weakref.ref[Release], place: int) -> Callable[[Tensor], None]:
    def complete(_: Tensor) -> None:
        owner = release()
        if owner is not None:
            owner.before_reduction(owner.slots[place])

    return _uncompiled(complete)


def _uncompiled(hook: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """The hook, which compiled backward passes call as it is, like `step`."""
    return _disable_dynamo(hook)


def _at_end_of_backward(callback: Callable[[], None]) -> None:
    """Runs a callback at the end of the running backward pass, after those queued before."""
    engine = torch.autograd.Variable._execution_engine
    # The engine's own method, for torch before there was a public one.
    getattr(torch.autograd.graph, "queue_callback", engine.queue_callback)(callback)
