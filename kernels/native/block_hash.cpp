// Hashes text in 64-byte blocks, each chained to the block before: XXH3-64 over (previous hash, 64 bytes), keyed by a seed.
// The input is always 72 bytes, so only XXH3's 17..128-byte form is here, written from the published specification
// (doc/xxhash_spec.md of the xxHash project); tests compare it with the `xxhash` package.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>

namespace nb = nanobind;

namespace {

constexpr std::size_t kBlockBytes = 64;
constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
// The first 96 bytes of XXH3's default secret, as little-endian words (all that a 72-byte input reads).
constexpr std::uint64_t kSecret[12] = {
    0xbe4ba423396cfeb8ULL, 0x1cad21f72c81017cULL, 0xdb979083e96dd4deULL, 0x1f67b3b7a4a44072ULL,
    0x78e5c0cc4ee679cbULL, 0x2172ffcc7dd05a82ULL, 0x8e2443f7744608b8ULL, 0x4c263a81e69035e0ULL,
    0xcb00c391bb52283cULL, 0xa32e531b8b65d088ULL, 0x4ef90da297486471ULL, 0xd8acdea946ef1938ULL,
};

inline std::uint64_t read64(const unsigned char* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);  // Little-endian hosts only; checked at import by a test vector.
  return word;
}

inline std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t mix16(const unsigned char* in, int secret, std::uint64_t seed) {
  return fold(read64(in) ^ (kSecret[secret] + seed), read64(in + 8) ^ (kSecret[secret + 1] - seed));
}

std::uint64_t hash72(const unsigned char* in, std::uint64_t seed) {
  constexpr std::size_t length = 72;
  std::uint64_t acc = length * kPrime1;
  acc += mix16(in + 32, 8, seed);
  acc += mix16(in + length - 48, 10, seed);
  acc += mix16(in + 16, 4, seed);
  acc += mix16(in + length - 32, 6, seed);
  acc += mix16(in, 0, seed);
  acc += mix16(in + length - 16, 2, seed);
  acc ^= acc >> 37;
  acc *= 0x165667919E3779F9ULL;
  return acc ^ (acc >> 32);
}

nb::list hash_chain(nb::handle data, std::uint64_t seed, std::uint64_t parent) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto* bytes = static_cast<const unsigned char*>(view.buf);
  const std::size_t blocks = static_cast<std::size_t>(view.len) / kBlockBytes;
  nb::list out;
  unsigned char input[8 + kBlockBytes];
  for (std::size_t block = 0; block < blocks; ++block) {
    std::memcpy(input, &parent, 8);
    std::memcpy(input + 8, bytes + block * kBlockBytes, kBlockBytes);
    parent = hash72(input, seed);
    out.append(nb::int_(parent));
  }
  PyBuffer_Release(&view);
  return out;
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("hash_chain", &hash_chain, nb::arg("data"), nb::arg("seed"), nb::arg("parent"),
        "Hashes of the whole 64-byte blocks of `data`, each chained to the one before; a partial last block is left out.");
}
