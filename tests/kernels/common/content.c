#include "content.h"

#include <string.h>

uint64_t content_word(uint64_t seed, uint64_t index) {
    /* splitmix64 */
    uint64_t word = (index + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    word ^= word >> 31;
    const uint64_t exponent = 0x7ff0000000000000u;
    if ((word & exponent) == exponent)
        word ^= 0x4000000000000000u;
    return word;
}

unsigned char content_byte(uint64_t seed, uint64_t position) {
    return (unsigned char)(content_word(seed, position / 8) >> (position % 8 * 8));
}

void content_fill(uint64_t seed, uint64_t position, void *buffer, size_t length) {
    unsigned char *at = buffer;
    while (length > 0 && position % 8 != 0) {
        *at++ = content_byte(seed, position++);
        length--;
    }
    for (; length >= 8; length -= 8, position += 8, at += 8) {
        uint64_t word = content_word(seed, position / 8);
        memcpy(at, &word, 8); /* little-endian, like the bytes above */
    }
    while (length > 0) {
        *at++ = content_byte(seed, position++);
        length--;
    }
}

size_t content_check(uint64_t seed, uint64_t position, const void *buffer, size_t length) {
    const unsigned char *bytes = buffer;
    size_t i = 0;
    while (i < length) {
        uint64_t word;
        if ((position + i) % 8 == 0 && length - i >= 8) {
            memcpy(&word, bytes + i, 8);
            if (word == content_word(seed, (position + i) / 8)) {
                i += 8;
                continue;
            }
        }
        if (bytes[i] != content_byte(seed, position + i))
            return i;
        i++;
    }
    return length;
}
