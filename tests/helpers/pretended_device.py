"""A device that is not the CPU, without one: tensors with real values that refuse to be mixed.

As on a GPU, an operation of tensors on both devices is an error (but for scalars and copies), and
what makes the host wait is noted.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

aten = torch.ops.aten
DEVICE = torch.device('meta')  # the one for which autograd needs no driver
WAITS = (aten._local_scalar_dense, aten.nonzero, aten.equal, aten.is_nonzero, aten._unique2)
COPIES = (aten._to_copy, aten.copy_)


class Pretended(torch.Tensor):
    """A tensor on the pretended device; its value lies on the CPU."""

    @staticmethod
    def __new__(cls, value):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            value.size(),
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=DEVICE,
        )

    def __init__(self, value):
        self.value = value

    def tolist(self):
        # Tensor subclasses made by _make_wrapper_subclass have no tolist.
        if PretendedDevice.current is not None:
            PretendedDevice.current.waits.append('tolist')
        return self.value.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """Run an operation on the values of pretended tensors, and refuse tensors on two devices."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    on_cpu = [x for x in tensors if not isinstance(x, Pretended) and x.ndim]
    if func.overloadpacket not in COPIES and on_cpu and len(on_cpu) < len(tensors):
        shapes = [tuple(x.shape) for x in on_cpu]
        raise RuntimeError(f'{func} of tensors on two devices: those on the CPU are {shapes}')
    inner, options = tree_map_only(Pretended, lambda x: x.value, (args, kwargs))
    to_cpu = False
    if options.get('device') is not None:
        to_cpu = torch.device(options['device']).type == 'cpu'
        options = {**options, 'device': 'cpu', 'pin_memory': None}
        options = {key: value for key, value in options.items() if value is not None}
    if any(isinstance(x, Pretended) for x in tensors) and PretendedDevice.current is not None:
        name = func.overloadpacket
        if name in WAITS or (to_cpu and name is aten._to_copy):
            PretendedDevice.current.waits.append(str(name).removeprefix('aten.'))
    out = func(*inner, **options)
    if to_cpu:
        return out
    has_float64 = getattr(PretendedDevice.current, 'has_float64', True)
    outputs = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]
    if not has_float64 and any(x.dtype == torch.float64 for x in outputs):
        raise TypeError(f'{func}: the device has no float64')
    out = tree_map_only(torch.Tensor, lambda x: Pretended(x), out)
    return return_and_correct_aliasing(func, args, kwargs, out)


class PretendedDevice(TorchDispatchMode):
    """Mode that creates tensors on the pretended device, and notes operations that wait for it.

    Args:
        has_float64: Whether the device has float64, which Apple's MPS has not.
    """

    current = None

    def __init__(self, *, has_float64=True):
        super().__init__()
        self.has_float64 = has_float64

    def __enter__(self):
        self.waits = []
        PretendedDevice.current = self
        return super().__enter__()

    def __exit__(self, *error):
        PretendedDevice.current = None
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        device = kwargs.get('device')
        creates_there = device is not None and torch.device(device).type == DEVICE.type
        if creates_there or any(isinstance(x, Pretended) for x in tree_flatten((args, kwargs))[0]):
            return run(func, args, kwargs)
        return func(*args, **kwargs)


def there(value):
    """Return a tensor with this value on the pretended device."""
    return Pretended(value.detach().clone())
