// Numbers that C++ compilers do not all have: bfloat16. Each source that includes this is one library.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

struct bfloat16 {
    uint16_t bits;
    operator float() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
    bfloat16() = default;
    explicit bfloat16(float value) {
        uint32_t wide;
        std::memcpy(&wide, &value, sizeof wide);
        // Round to nearest even; a NaN keeps a set mantissa bit.
        bits = value != value ? 0x7FC0 : static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
    }
};

}  // namespace
