#include <zstd.h>

#include <utility>
#include <vector>

#include "checkpoint/archive.h"
#include "flashoptim/checkpoint.h"

namespace flashoptim {

bool HasZstd() { return true; }

namespace checkpoint {
namespace {

class ZstdDecompressor : public Decompressor {
 public:
  ZstdDecompressor(std::span<const std::byte> compressed, std::string file)
      : context_(ZSTD_createDCtx(), ZSTD_freeDCtx),
        input_{compressed.data(), compressed.size(), 0},
        file_(std::move(file)) {
    if (!context_) throw FileError(file_ + ": no memory for decompression");
  }

  std::size_t Read(std::span<std::byte> target) override {
    ZSTD_outBuffer output{target.data(), target.size(), 0};
    while (output.pos < output.size) {
      const std::size_t before_in = input_.pos;
      const std::size_t before_out = output.pos;
      const std::size_t result = ZSTD_decompressStream(context_.get(), &output, &input_);
      if (ZSTD_isError(result) != 0) {
        throw FileError(file_ + ": the compressed data are damaged (" + ZSTD_getErrorName(result) +
                        "); fetch the file again");
      }
      if (input_.pos != before_in || output.pos != before_out) {
        inside_frame_ = result != 0;
        continue;
      }
      if (inside_frame_) {
        throw FileError(file_ + ": the compressed data are cut off; fetch the file again");
      }
      break;
    }
    return output.pos;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context_;
  ZSTD_inBuffer input_;
  std::string file_;
  bool inside_frame_ = false;
};

class ZstdCompressor : public Compressor {
 public:
  ZstdCompressor(int level, Sink sink, std::string file)
      : context_(ZSTD_createCCtx(), ZSTD_freeCCtx),
        sink_(std::move(sink)),
        file_(std::move(file)),
        buffer_(ZSTD_CStreamOutSize()) {
    if (!context_) throw FileError(file_ + ": no memory for compression");
    if (level < 1 || level > ZSTD_maxCLevel()) {
      throw FileError(file_ + ": the zstd level must be 1 to " + std::to_string(ZSTD_maxCLevel()) +
                      ", not " + std::to_string(level));
    }
    Check(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, level));
    Check(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1));
  }

  void Write(std::span<const std::byte> bytes) override { Run(bytes, ZSTD_e_continue); }
  void Finish() override { Run({}, ZSTD_e_end); }

 private:
  void Check(std::size_t result) const {
    if (ZSTD_isError(result) != 0) {
      throw FileError(file_ + ": compression failed: " + ZSTD_getErrorName(result));
    }
  }

  void Run(std::span<const std::byte> bytes, ZSTD_EndDirective directive) {
    ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
    std::size_t left = 0;
    do {
      ZSTD_outBuffer output{buffer_.data(), buffer_.size(), 0};
      left = ZSTD_compressStream2(context_.get(), &output, &input, directive);
      Check(left);
      sink_({buffer_.data(), output.pos});
    } while (directive == ZSTD_e_end ? left != 0 : input.pos < input.size);
  }

  std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context_;
  Sink sink_;
  std::string file_;
  std::vector<std::byte> buffer_;
};

}  // namespace

std::unique_ptr<Decompressor> MakeDecompressor(std::span<const std::byte> compressed,
                                               const std::string& file) {
  return std::make_unique<ZstdDecompressor>(compressed, file);
}

std::unique_ptr<Compressor> MakeCompressor(int level, Sink sink, const std::string& file) {
  return std::make_unique<ZstdCompressor>(level, std::move(sink), file);
}

}  // namespace checkpoint
}  // namespace flashoptim
