#include "optimizer/memory.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <tuple>

#include "cuda/backend.h"
#include "flashoptim/layout.h"

namespace flashoptim {
namespace {

// Fresh contents reach a GPU in pieces of this many bytes.
constexpr std::size_t kPiece = std::size_t{1} << 20;

std::size_t Sum(std::size_t a, std::size_t b) {
  std::size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw std::bad_array_new_length();
  return sum;
}

std::size_t RoundUp(std::size_t bytes) {
  return Sum(bytes, kFastAlignment - 1) / kFastAlignment * kFastAlignment;
}

Block Allocate(Device device, std::size_t bytes) {
  void* memory = device.type == DeviceType::kCuda
                     ? cuda::Allocate(device.index, bytes)
                     : ::operator new (bytes, std::align_val_t{kFastAlignment});
  return {memory, ReleaseBlock{device}};
}

// One element of fresh contents, as bytes.
std::vector<std::byte> FreshElement(const StateEntry& tensor, Codec codec) {
  std::vector<std::byte> element(SizeOf(tensor.dtype), std::byte{0});
  const auto store = [&](const auto& value) { std::memcpy(element.data(), &value, sizeof(value)); };
  switch (tensor.kind) {
    case StateKind::kStreamKey:
      store(static_cast<std::int64_t>(tensor.parameter));
      break;
    case StateKind::kFirstScale:
      store(FreshFirstScale());
      break;
    case StateKind::kSecondScale:
    case StateKind::kMaximumScale:
      store(FreshSecondScale(codec));
      break;
    case StateKind::kSecondMoment:
    case StateKind::kMaximum:
      if (codec != Codec::kNone) store(std::uint8_t{255});
      break;
    case StateKind::kStep:
    case StateKind::kCorrection:
    case StateKind::kFirstMoment:
      break;
  }
  return element;
}

void Repeat(std::span<const std::byte> element, std::byte* target, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += element.size()) {
    std::memcpy(target + i, element.data(), element.size());
  }
}

}  // namespace

void ReleaseBlock::operator()(void* memory) const noexcept {
  if (device.type == DeviceType::kCuda) {
    cuda::Release(memory);
  } else {
    ::operator delete (memory, std::align_val_t{kFastAlignment});
  }
}

std::vector<Block> AllocateMissing(std::span<StateEntry> state) {
  struct Need {
    Device device;
    std::size_t bytes;
  };
  std::vector<Need> needs;
  const auto need_of = [&](Device device) -> Need& {
    for (Need& need : needs) {
      if (need.device == device) return need;
    }
    return needs.emplace_back(Need{device, 0});
  };
  const auto missing = [](const StateEntry& tensor) {
    return tensor.data == nullptr && tensor.bytes != 0;
  };
  for (const StateEntry& tensor : state) {
    if (!missing(tensor)) continue;
    Need& need = need_of(tensor.device);
    need.bytes = Sum(need.bytes, RoundUp(tensor.bytes));
  }
  std::vector<Block> blocks;
  for (const Need& need : needs) {
    auto* next =
        static_cast<std::byte*>(blocks.emplace_back(Allocate(need.device, need.bytes)).get());
    for (StateEntry& tensor : state) {
      if (!missing(tensor) || tensor.device != need.device) continue;
      tensor.data = next;
      next += RoundUp(tensor.bytes);
    }
  }
  return blocks;
}

void MakeFresh(const StateEntry& tensor, Codec codec) {
  const std::vector<std::byte> element = FreshElement(tensor, codec);
  auto* target = static_cast<std::byte*>(tensor.data);
  if (tensor.device.type == DeviceType::kCpu) {
    Repeat(element, target, tensor.bytes);
    return;
  }
  std::vector<std::byte> piece(std::min(tensor.bytes, kPiece));
  Repeat(element, piece.data(), piece.size());
  for (std::size_t done = 0; done < tensor.bytes; done += piece.size()) {
    cuda::CopyToDevice(tensor.device.index, target + done, piece.data(),
                       std::min(piece.size(), tensor.bytes - done), nullptr);
  }
}

void CopyOut(Device device, void* stream, void* host, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.type == DeviceType::kCpu) {
    std::memcpy(host, source, bytes);
  } else {
    cuda::CopyToHost(device.index, host, source, bytes, stream);
  }
}

void CopyIn(Device device, void* stream, void* target, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.type == DeviceType::kCpu) {
    std::memcpy(target, host, bytes);
  } else {
    cuda::CopyToDevice(device.index, target, host, bytes, stream);
  }
}

void CheckExtents(std::vector<Extent> extents) {
  std::erase_if(extents, [](const Extent& extent) { return extent.bytes == 0; });
  const auto begin = [](const Extent& extent) {
    return std::bit_cast<std::uintptr_t>(extent.data);
  };
  for (const Extent& extent : extents) {
    if (extent.data == nullptr) {
      throw std::invalid_argument(extent.what + " has no address; pass that of its memory");
    }
    if (begin(extent) % extent.alignment != 0) {
      throw std::invalid_argument(extent.what + " is not aligned to its element size of " +
                                  std::to_string(extent.alignment) + " bytes");
    }
    if (begin(extent) > UINTPTR_MAX - extent.bytes) {
      throw std::invalid_argument(extent.what + ", of " + std::to_string(extent.bytes) +
                                  " bytes, runs past the end of the address space; check the "
                                  "address and the shape");
    }
  }
  const auto place = [&](const Extent& extent) {
    return std::tuple(extent.device.type, extent.device.index, begin(extent));
  };
  std::sort(extents.begin(), extents.end(),
            [&](const Extent& a, const Extent& b) { return place(a) < place(b); });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    const Extent& before = extents[i - 1];
    if (before.device == extents[i].device && begin(extents[i]) - begin(before) < before.bytes) {
      throw std::invalid_argument(extents[i].what + " overlaps with " + before.what +
                                  "; give each tensor memory of its own, and a tied weight once");
    }
  }
}

}  // namespace flashoptim
