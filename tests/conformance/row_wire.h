// Rows and their outputs as bytes, for kernels in another process of the same tree. Needs no library.
#pragma once

#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/row.h"

namespace sortition::testing {

static_assert(std::endian::native == std::endian::little && sizeof(size_t) == 8, "both sides have these numbers");

// A row with all that it refers to.
struct WireRow {
  kernels::RowRequest request;
  kernels::RowParameters parameters;
  std::vector<kernels::LogitEdit> edits;
  std::vector<uint32_t> allowed_tokens, allowed_bits, sparse_tokens, sparse_bits, rivals, requested;
  std::vector<std::byte> logits, dense;
};

class WireWriter {
 public:
  template <typename Number>
  void Go(Number& number) {
    static_assert(std::is_trivially_copyable_v<Number>);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  template <typename Number>
  void Go(std::vector<Number>& list) {
    static_assert(std::is_trivially_copyable_v<Number>);
    uint64_t size = list.size();
    Go(size);
    bytes_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(Number));
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : left_(bytes) {}

  template <typename Number>
  void Go(Number& number) {
    Copy(&number, sizeof(number));
  }
  template <typename Number>
  void Go(std::vector<Number>& list) {
    uint64_t size = 0;
    Go(size);
    if (size > left_.size() / sizeof(Number)) {
      failed_ = true;
      return;
    }
    list.resize(size);
    Copy(list.data(), size * sizeof(Number));
  }
  bool ends() const { return !failed_ && left_.empty(); }

 private:
  void Copy(void* to, size_t size) {
    if (size > left_.size()) {
      failed_ = true;
    } else if (size != 0) {
      std::memcpy(to, left_.data(), size);
      left_.remove_prefix(size);
    }
  }

  std::string_view left_;
  bool failed_ = false;
};

template <typename Io, typename... Fields>
void GoAll(Io* io, Fields&... fields) {
  (io->Go(fields), ...);
}

template <typename Io>
void Go(Io* io, WireRow* row) {
  kernels::RowRequest& r = row->request;
  kernels::RowParameters& p = row->parameters;
  GoAll(io, r.dtype, r.live_vocabulary, r.noise, r.has_allowed_tokens, r.task, r.given, r.draft.form, r.draft.dtype,
        r.draft.with_replacement, r.survival, r.wants_race_place, r.likely, r.sampler_state);
  GoAll(io, p.greedy, p.multiplier, p.exponent, p.window, p.temperature, p.min_p_distance, p.top_k, p.top_p,
        p.repetition, p.inverse_repetition, p.chain, p.mask_nan, p.raw_logprob, p.processed_logprob, p.raw_top,
        p.processed_top, p.entropy, p.kept_count, p.kept_tokens, p.tempered_logprob, p.tempered_top, p.kept_log_mass);
  GoAll(io, row->edits, row->allowed_tokens, row->allowed_bits, row->sparse_tokens, row->sparse_bits, row->rivals,
        row->requested, row->logits, row->dense);
}

template <typename Io>
void Go(Io* io, kernels::Distribution* d) {
  GoAll(io, d->max_bits, d->weight_sum, d->chosen, d->rank, d->top, d->requested);
}

template <typename Io>
void Go(Io* io, kernels::RowOutput* o) {
  GoAll(io, o->error, o->error_token, o->token, o->accepted, o->survival, o->kept, o->mass, o->race, o->entropy,
        o->kept_tokens, o->sampler_state, o->temperature);
  for (kernels::Distribution* const d : {&o->raw, &o->processed, &o->tempered}) Go(io, d);
}

template <typename Value>
std::string ToBytes(Value value) {
  WireWriter writer;
  Go(&writer, &value);
  return std::move(writer.bytes());
}

// Returns nothing for bytes of another form.
template <typename Value>
std::optional<Value> FromBytes(std::string_view bytes) {
  Value value;
  WireReader reader(bytes);
  Go(&reader, &value);
  if (!reader.ends()) return std::nullopt;
  return value;
}

// Copies all that a row refers to.
inline WireRow CopyRow(const kernels::RowRequest& request, const void* logits) {
  const auto copy = [](const auto& list) { return std::vector(list.begin(), list.end()); };
  const auto elements = [&](const void* first, kernels::DType dtype) {
    const auto* const bytes = static_cast<const std::byte*>(first);
    return std::vector(bytes, bytes + size_t{request.live_vocabulary} * kernels::ElementBytes(dtype));
  };
  WireRow row;
  row.request = request;
  row.parameters = *request.parameters;
  row.edits = copy(request.edits);
  row.allowed_tokens = copy(request.allowed_tokens);
  if (request.allowed_bits != nullptr) {
    row.allowed_bits.assign(request.allowed_bits, request.allowed_bits + (request.live_vocabulary + 31) / 32);
  }
  row.sparse_tokens = copy(request.draft.sparse_tokens);
  row.sparse_bits = copy(request.draft.sparse_bits);
  row.rivals = copy(request.rivals);
  row.requested = copy(request.requested);
  row.logits = elements(logits, request.dtype);
  if (request.draft.dense != nullptr) row.dense = elements(request.draft.dense, request.draft.dtype);
  return row;
}

// Returns the request to the kernels, which refers to the row.
inline kernels::RowRequest RequestOf(const WireRow& row) {
  kernels::RowRequest request = row.request;
  request.logits = row.logits.data();
  request.parameters = &row.parameters;
  request.edits = row.edits;
  request.allowed_tokens = row.allowed_tokens;
  request.allowed_bits = row.allowed_bits.empty() ? nullptr : row.allowed_bits.data();
  request.draft.dense = row.dense.empty() ? nullptr : row.dense.data();
  request.draft.sparse_tokens = row.sparse_tokens;
  request.draft.sparse_bits = row.sparse_bits;
  request.rivals = row.rivals;
  request.requested = row.requested;
  return request;
}

// Write and read a message: 4 bytes of length, and these. They block, and return false if the other side has ended.
inline bool WriteMessage(int descriptor, const std::string& message) {
  std::string bytes(4, '\0');
  const auto size = static_cast<uint32_t>(message.size());
  std::memcpy(bytes.data(), &size, sizeof(size));
  bytes += message;
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = write(descriptor, bytes.data() + at, bytes.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

inline bool ReadBytes(int descriptor, char* to, size_t size) {
  for (size_t at = 0; at < size;) {
    const ssize_t read_bytes = read(descriptor, to + at, size - at);
    if (read_bytes < 0 && errno == EINTR) continue;
    if (read_bytes <= 0) return false;
    at += static_cast<size_t>(read_bytes);
  }
  return true;
}

inline bool ReadMessage(int descriptor, std::string* message) {
  constexpr uint32_t kMost = 64u << 20;
  uint32_t size = 0;
  if (!ReadBytes(descriptor, reinterpret_cast<char*>(&size), sizeof(size)) || size > kMost) return false;
  message->resize(size);
  return ReadBytes(descriptor, message->data(), size);
}

}  // namespace sortition::testing
