"""Parameter shapes of the models whose steps are timed, from their published configurations."""

from __future__ import annotations

import math

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


def one_tensor(log2_parameters: int) -> Shapes:
    """One square or nearly square matrix with a power of two of elements."""
    rows = log2_parameters // 2
    return ((1 << rows, 1 << (log2_parameters - rows)),)


def gpt2(
    layers: int = 12, width: int = 768, context: int = 1024, vocabulary: int = 50257
) -> Shapes:
    """GPT-2 with tied embeddings; the smallest one, of 124M parameters, by default."""
    block: Shapes = (
        (width,),
        (width,),
        (width, 3 * width),
        (3 * width,),
        (width, width),
        (width,),
        (width,),
        (width,),
        (width, 4 * width),
        (4 * width,),
        (4 * width, width),
        (width,),
    )
    return ((vocabulary, width), (context, width), *(block * layers), (width,), (width,))


def llama(
    layers: int = 8,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    hidden: int = 14336,
    vocabulary: int = 128256,
) -> Shapes:
    """Llama 3.1 8B with a quarter of its layers by default, embeddings and head included."""
    kv_width = width // heads * kv_heads
    block: Shapes = (
        (width, width),
        (kv_width, width),
        (kv_width, width),
        (width, width),
        (hidden, width),
        (hidden, width),
        (width, hidden),
        (width,),
        (width,),
    )
    return ((vocabulary, width), *(block * layers), (width,), (vocabulary, width))


def resnet50(classes: int = 1000) -> Shapes:
    """ResNet-50: convolutions, batch norms, and one linear layer."""
    shapes: list[Shape] = []

    def convolution(outputs: int, inputs: int, size: int) -> None:
        shapes.extend([(outputs, inputs, size, size), (outputs,), (outputs,)])

    convolution(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(width, inputs, 1)
            convolution(width, width, 3)
            convolution(4 * width, width, 1)
            if block == 0:
                convolution(4 * width, inputs, 1)
            inputs = 4 * width
    return (*shapes, (classes, inputs), (classes,))


def many_sizes(count: int = 320, smallest: int = 64, largest: int = 2_000_000) -> Shapes:
    """Tensors whose sizes grow evenly on a logarithmic scale, in a fixed mixed order.

    From 4,096 elements on they are matrices with rows of a power of two.
    """
    growth = math.log(largest / smallest) / (count - 1)
    sizes = [round(smallest * math.exp(growth * index)) for index in range(count)]
    mixed = [sizes[index * 131 % count] for index in range(count)]
    return tuple(map(_matrix, mixed))


def _matrix(elements: int) -> Shape:
    if elements < 4096:
        return (elements,)
    row = 1 << (elements.bit_length() // 2)
    return (elements // row, row)


def distinct(count: int = 300) -> Shapes:
    """Matrices no two of which have the same shape."""
    return tuple((64 + index, 256 + 8 * (index % 37)) for index in range(count))


def elements(shapes: Shapes) -> int:
    """Number of parameters."""
    return sum(map(math.prod, shapes))


def shrunk(shapes: Shapes, limit: int = 128) -> Shapes:
    """As many tensors of as many dimensions, none of them longer than the limit."""
    return tuple(tuple(min(size, limit) for size in shape) for shape in shapes)
