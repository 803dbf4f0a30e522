"""The class that all optimizers of this package share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from . import _C
from ._adopt import adopt
from ._checkpoint import FORMAT, called_to_make_state
from ._conform import conform
from ._export import torch_state_dict
from ._master import fp32_state_dict, lacks_corrections, load_fp32_state_dict
from ._memory import MemoryReport, report
from ._numerics import check_steps
from ._options import RuleKind, hyperparameters, warn_of_typos
from ._parameter_plan import ParameterPlan, step_alone
from ._plan import Entry, StepPlan, counts_on_host, usable_gradient
from ._portable import make_portable
from ._preparing import PREPARING
from ._release import Release
from ._sharding import needs_state
from ._state import (
    CORRECTION,
    Layout,
    State,
    check_state,
    fresh_state,
    layout_of,
    naming,
    parameter_name,
    prepare_device,
    weight_of,
)
from ._state_dict import read_state_dict
from ._step_hooks import profile_hook_step
from ._stream_keys import StreamKeys
from ._warn import warn_user

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class FlashOptimizer(torch.optim.Optimizer):
    """Base of the optimizers of this package: everything but the update rule.

    State is kept as docs/format.md says: moments as 8-bit codes with one fp32 scale per 64 elements
    (section 5; the paper's section 3.2), master weights as the parameter plus an integer correction
    (section 4; the paper's section 3.1). It is made at a parameter's first gradient.

    Parameters may be bf16, fp16, fp32 or complex64, of any shape and any dense memory order; their
    gradients bf16, fp16 or fp32. All hyper-parameters are read from the groups at each step.

    The arguments that all optimizers have, beside those of their rule:

    Args:
        quantize: keep moments in 8 bits. False: in fp32.
        codec: how: ``"root"``, ``"softsign"`` (the paper's) or ``"none"``, which is fp32 too. Small
            vectors are always kept in fp32 (docs/format.md, section 2).
        master_weight_bits: precision of the master weight of a 16-bit parameter: 24 or 32 bits keep
            a correction of 8 or 16 bits beside it; with 16 or None there is none.
        stochastic_rounding: round master weights of less than 32 bits up or down at random, so that
            small updates are kept on average. False: to nearest, which loses updates below half a
            unit in the last place.
        nonfinite: what happens when a gradient holds NaN or an infinity. ``"propagate"``: as in
            torch, to the elements concerned. ``"skip"``: its tensor is left alone and counted in
            ``skipped_tensors``. ``"error"``: the step raises RuntimeError and writes nothing.
        seed: of all stochastic rounding. The same seed gives the same bits on every machine.
        compress_state_dict: ``state_dict`` holds codes. False: fp32 moments.
        check_numerics: raise `NumericsError` when steps are too small for the largest weights.
        foreach, fused: accepted and without effect; a step is always one native call.
        capturable: keep step counts on the GPU, and read an lr that is a CUDA tensor there,
            so that a CUDA graph can replay the step. Without effect for CPU parameters.
        differentiable: must be False.
    """

    _kind: ClassVar[RuleKind]
    # GradScaler leaves unscaling, and skipping, to the step.
    _step_supports_amp_scaling: ClassVar[bool] = True
    profile_hook_step = staticmethod(profile_hook_step)

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._reset()
        super().__init__(params, defaults)

    def _reset(self) -> None:
        self._plan: StepPlan | None = None
        self._alone: dict[Tensor, ParameterPlan] = {}  # of `step_param`
        self._release: Release | None = None  # set by `enable_gradient_release`
        self._codecs: dict[Tensor, _C.Codec] = {}  # in which the state is; groups say the wanted
        self._stream_keys = StreamKeys()
        self._largest: dict[Tensor, float] = {}
        self._warned_of_lost_updates = False
        #: Tensor updates that ``nonfinite="skip"`` has left out so far.
        self.skipped_tensors = 0

    def __getstate__(self) -> dict[str, Any]:
        self._conform()
        return {
            **super().__getstate__(),
            "_stream_keys": self._stream_keys,
            "skipped_tensors": self.skipped_tensors,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()
        super().__setstate__(state)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)
        self._conform()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group.

        Args:
            param_group: ``params`` and the options that differ from the defaults.

        Raises:
            TypeError, ValueError, NotImplementedError: an option is not valid, or a parameter that
                requires a gradient cannot be stepped; nothing is added.
        """
        warn_of_typos(param_group, self.defaults)
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        try:
            self._check_group(index)
        except Exception:
            del self.param_groups[index]
            raise
        param_group[FORMAT] = _C.FORMAT_VERSION
        if param_group.get("decouple_lr"):
            param_group.setdefault("initial_lr", float(param_group["lr"]))
        self._stream_keys.assign(self.param_groups, self.state)

    def _check_group(self, index: int) -> None:
        group = self.param_groups[index]
        with naming(f"parameter group {index}"):
            hyperparameters(group, self._kind)
        devices = set()
        for position, param in enumerate(group["params"]):
            if param.requires_grad:
                name = parameter_name(self.param_groups, index, position)
                with naming(name):
                    layout = layout_of(param, group, self._kind)
                self._warn_of_lost_updates(name, param, layout, group)
                devices.add(param.device)
        for device in devices:
            prepare_device(device, self._kind)

    def _warn_of_lost_updates(
        self, name: str, param: Tensor, layout: Layout, group: dict[str, Any]
    ) -> None:
        exact = param.element_size() != 2 or layout.correction_bits
        if exact or group["stochastic_rounding"] or self._warned_of_lost_updates:
            return
        self._warned_of_lost_updates = True
        warn_user(
            f"{name} is {param.dtype} and its master weight has no correction: updates below half "
            "a unit in the last place are lost. Use master_weight_bits=24, or "
            "stochastic_rounding=True"
        )

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @_disable_dynamo
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates every parameter that has a gradient.

        Args:
            closure: evaluates the model again and returns the loss.

        Returns:
            The closure's loss.

        Raises:
            RuntimeError, TypeError, ValueError: a parameter, its gradient, its state or an option
                cannot be used, or ``nonfinite="error"`` met NaN or an infinity. The message names
                the parameter; nothing was written.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._release is not None:
            self._release.finish_step()
            if not self._anything_left():
                return loss
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found_inf is not None and counts_on_host(self.param_groups) and float(found_inf) != 0:
            return loss
        if not self.state and called_to_make_state():
            self._plan = self._make_plan()
            return loss
        if self._plan is None or not self._plan.fits(self.param_groups, self.state):
            self._plan = self._make_plan()
        if any(group["check_numerics"] for group in self.param_groups):
            check_steps(self._plan.entries, self.param_groups, self._kind.rule, self._largest)
        _C.set_cpu_threads(torch.get_num_threads())
        self.skipped_tensors += self._plan.step(scale, found_inf)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters, and what gradient release has accumulated."""
        super().zero_grad(set_to_none)
        if self._release is not None:
            self._release.drop()

    def _anything_left(self) -> bool:
        """Whether a parameter has a gradient, or needs state although it had none."""
        return any(
            param.grad is not None or (needs_state(param) and not self.state.get(param))
            for group in self.param_groups
            for param in group["params"]
        )

    def step_param(self, p: Tensor, group: dict[str, Any] | None = None) -> None:
        """Updates one parameter if it has a gradient, which stays.

        Args:
            p: a parameter of this optimizer.
            group: its parameter group; looked up if None.

        Raises:
            ValueError: it is not in the group, or in none. Otherwise as `step`.
        """
        with torch.no_grad():
            step_alone(self, p, group, self._alone)

    def recompute_param_stats(self) -> None:
        """Lets ``check_numerics`` measure all parameters afresh at the next step.

        Otherwise it does so at a parameter's first step and after loading only.
        """
        self._largest.clear()

    def get_fp32_model_state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """A copy of the model's state dict with master weights in fp32, for evaluation or export.

        Args:
            model: the model that is optimized; floating-point tensors of it that have no master
                weight are converted to fp32.
        """
        return fp32_state_dict(model, self.state)

    def set_fp32_model_state_dict(
        self, model: nn.Module, fp32_state_dict: Mapping[str, Tensor]
    ) -> None:
        """Sets the model's weights and their corrections from fp32 weights.

        Before the first step it makes the state that the first step would, which keeps all bits.
        Frozen parameters have no correction; they get the nearest 16-bit weight.

        Args:
            model: the model that is optimized.
            fp32_state_dict: fp32 tensors by name, all or some of the model's.

        Raises:
            ValueError: an unknown name, another shape or dtype; nothing was written.
        """
        load_fp32_state_dict(model, fp32_state_dict, self.state, self._make_corrections)

    def resync_master_weights(self) -> None:
        """Makes the master weights equal to the parameters, after these were changed elsewhere.

        For instance after ``model.load_state_dict`` without the optimizer's, or ``p.data.copy_``.
        Without it the next step starts from a master weight within half a unit in the last place
        of the new weight (docs/format.md, section 4.5). Moments and step counts stay.
        """
        for state in self.state.values():
            if CORRECTION in state:
                state[CORRECTION].zero_()

    def memory_report(self) -> MemoryReport:
        """Memory of the parameters, their gradients and their state as it is now."""
        return report(self._parameters(), self.param_groups, self.state, self._kind)

    def _make_corrections(self) -> None:
        if lacks_corrections(self._parameters(), self.param_groups, self.state):
            self._plan = self._make_plan(everything=True)

    @torch.inference_mode(False)  # what is made here outlives that mode
    @torch.no_grad()
    def _make_plan(self, everything: bool = False) -> StepPlan:
        """Makes the state that is missing, then prepares a step of all parameters with state.

        With `everything` also the state of parameters that have had no gradient yet.
        """
        with PREPARING:
            self._conform()
            self._stream_keys.assign(self.param_groups, self.state)
            entries: list[Entry] = []
            fresh: dict[Tensor, State] = {}
            for param, group, name in self._parameters():
                state = self.state.get(param)
                wanted = param.grad is not None or needs_state(param)
                if not (state or wanted or (everything and param.requires_grad)):
                    continue
                entries.append(self._entry(param, group, name, fresh))
            plan = StepPlan(self._kind, self.param_groups, entries, {**self.state, **fresh})
            self.state.update(fresh)
            self._codecs = {entry.param: entry.layout.codec for entry in entries}
        return plan

    def _entry(self, param: Tensor, group: int, name: str, fresh: dict[Tensor, State]) -> Entry:
        """A parameter as a plan needs it; puts its state into `fresh` if it has none."""
        state = self.state.get(param)
        with naming(name):
            weight = weight_of(param)
            if param.grad is not None:
                usable_gradient(param.grad, param)
            layout = layout_of(param, self.param_groups[group], self._kind)
            if state:
                check_state(state, weight, layout)
            else:
                fresh[param] = fresh_state(weight, layout, self._stream_keys.of[param])
        self._warn_of_lost_updates(name, param, layout, self.param_groups[group])
        return Entry(param, weight, name, group, layout)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _make_parameter_plan(
        self, param: Tensor, group: int, name: str, skip_nonfinite: bool
    ) -> ParameterPlan:
        """Makes the state of one parameter if it has none, then prepares a step of it alone."""
        with PREPARING:
            self._conform_parameter(param, group, name)
            if param not in self._stream_keys.of:
                self._stream_keys.assign(self.param_groups, self.state)
            fresh: dict[Tensor, State] = {}
            entry = self._entry(param, group, name, fresh)
            state = fresh.get(param) or self.state[param]
            plan = ParameterPlan(
                self._kind, self.param_groups[group], group, entry, state, skip_nonfinite
            )
            self.state.update(fresh)
            self._codecs[param] = entry.layout.codec
        return plan

    def _conform(self) -> None:
        """Converts state that is not kept as its group's options ask for, if these have changed."""
        for param, group, name in self._parameters():
            self._conform_parameter(param, group, name)

    def _conform_parameter(self, param: Tensor, group: int, name: str) -> None:
        if state := self.state.get(param):
            with naming(name):
                weight = weight_of(param)
                layout = layout_of(param, self.param_groups[group], self._kind)
                codec = self._codecs.get(param, layout.codec)
                self.state[param] = conform(state, weight, layout, codec)
            self._codecs[param] = layout.codec

    def _parameters(self) -> Iterator[tuple[Tensor, int, str]]:
        """Every parameter once, with its group's index and its name for messages."""
        seen: set[Tensor] = set()
        for index, group in enumerate(self.param_groups):
            for position, param in enumerate(group["params"]):
                if param not in seen:
                    seen.add(param)
                    yield param, index, parameter_name(self.param_groups, index, position)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, bit for bit, as docs/format.md names it.

        Every group says the format's version under ``flashoptim_format``: groups are what
        ``torch.save``, hooks and distributed checkpoints carry along unchanged. Tensors are those
        of the optimizer, not copies, as in torch; corrections of 16 bits are seen as bytes, which
        every collective can send. Groups with ``compress_state_dict=False`` have their moments
        decoded to fp32. Hooks see what is returned.
        """
        self._conform()
        # As the first of the hooks, so that those of others see what it makes.
        hook = self.register_state_dict_post_hook(make_portable, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def torch_state_dict(self) -> dict[str, Any]:
        """The optimizer's state for the torch optimizer of the same name, to go on there.

        For ``torch.optim.Adam``, ``AdamW`` and ``SGD``; that of FlashLion is for
        ``lion_pytorch.Lion``. Moments are decoded to fp32 copies, groups have torch's options only.
        Corrections are not in it: they are in the weights of `get_fp32_model_state_dict`. Load
        those first, into an fp32 model; torch keeps moments in the dtype of the parameters.

        Raises:
            ValueError: torch's optimizer has no such option, as for the decoupled weight decay of
                FlashSGDW. The message names the group.
        """
        self._conform()
        return torch_state_dict(self.param_groups, self.state, self._codecs, self._kind)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state dict of this class, or of an optimizer whose place it takes.

        Which one made it is seen from what is in it: torch's, ``flashoptim`` 0.1.3 and 0.1.4,
        bitsandbytes (8-bit blockwise or 32-bit), ``lion_pytorch`` (docs/migrating.md). To take
        over master weights of ``flashoptim``, load the model's weights first.

        Hyper-parameters come from the state dict, as in torch. How the optimizer works stays as it
        is: ``quantize``, ``codec`` and ``master_weight_bits`` (the loaded state is converted),
        ``compress_state_dict``, ``check_numerics``, ``foreach``, ``fused``, ``capturable`` and
        ``differentiable``. A missing ``initial_lr`` becomes the learning rate.

        State goes to the device and into the memory order of its parameter, whatever those were
        when it was saved. Nothing is shared with `state_dict` afterwards, but for tensors in it
        that are this optimizer's own (distributed checkpoints are read into them): these stay.
        Other state is written into the tensors that are there, unless somebody else holds them.

        State of DTensor parameters may be DTensors, or the whole tensors on every rank. Ranks
        communicate where a DTensor is cut in another way than its parameter.

        Args:
            state_dict: what `state_dict` returned.

        Raises:
            ValueError, TypeError: it does not fit. The message names the parameter; nothing was
                changed.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"a state dict is a dictionary, not {type(state_dict).__name__}")
        state_dict = dict(state_dict)
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            result = pre_hook(self, state_dict)
            if result is not None:
                state_dict = result
        groups, loaded = read_state_dict(state_dict, self.param_groups, self._kind)
        with torch.inference_mode(False), torch.no_grad():
            states = adopt(loaded, self.state)
        self.param_groups = groups
        self.state = defaultdict(dict, states)
        self._plan = None
        self._alone = {}
        self._codecs = {}
        self._largest = {}
        self._stream_keys.assign(self.param_groups, self.state)
        self._conform()
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)
