#include "checkpoint/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "flashoptim/checkpoint.h"

namespace flashoptim::checkpoint {
namespace {

[[noreturn]] void Fail(const std::string& file, const std::string& what, int error) {
  throw FileError(file + ": " + what + ": " + std::generic_category().message(error));
}

struct Descriptor {
  int number;
  explicit Descriptor(int n) : number(n) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

// A new file that vanishes when it is closed.
int OpenWithoutName(const std::string& folder) {
  const int number = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (number >= 0 || errno != EOPNOTSUPP) return number;
  // Network file systems make files with names only.
  std::string name = folder + "/.flashoptim-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

Mapping Mapping::OfFile(const std::string& path) {
  // Without O_NONBLOCK a pipe of that name would wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number < 0) Fail(path, "it cannot be opened", errno);
  struct stat status {};
  if (::fstat(file.number, &status) != 0) Fail(path, "its size cannot be read", errno);
  if (!S_ISREG(status.st_mode)) throw FileError(path + " is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return {nullptr, 0};
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (data == MAP_FAILED) Fail(path, "it cannot be mapped", errno);
  return {static_cast<std::byte*>(data), size};
}

Mapping Mapping::OfMemory(std::uint64_t bytes, const std::string& file) {
  const auto memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > memory) {
    throw FileError(file + " unpacks to " + std::to_string(bytes) +
                    " bytes, more than this machine's memory; unpack it on disk with "
                    "`flashoptim convert`");
  }
  if (bytes == 0) return {nullptr, 0};
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) Fail(file, "no memory to unpack it", errno);
  return {static_cast<std::byte*>(data), static_cast<std::size_t>(bytes)};
}

Mapping Mapping::OfTemporaryFile(std::uint64_t bytes, const std::string& folder) {
  const Descriptor file(OpenWithoutName(folder));
  if (file.number < 0) Fail(folder, "no temporary file can be made there", errno);
  if (bytes == 0) return {nullptr, 0};
  // All of it now: a full disk is an error here, and a signal later.
  const int error =
      bytes > INT64_MAX ? EFBIG : ::posix_fallocate(file.number, 0, static_cast<off_t>(bytes));
  if (error != 0) {
    Fail(folder, "no space to unpack " + std::to_string(bytes) + " bytes", error);
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
  if (data == MAP_FAILED) Fail(folder, "the temporary file cannot be mapped", errno);
  return {static_cast<std::byte*>(data), static_cast<std::size_t>(bytes)};
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace flashoptim::checkpoint
