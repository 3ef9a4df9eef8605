/* Content that the test programs write, and the functions that check it.
 *
 * Every byte is a function of (seed, position), so any rank on any node can check any byte without
 * knowing what another rank wrote, and a byte of an older file, of another place or of another rank
 * is noticed.
 */
#ifndef FOREBAY_CONTENT_H
#define FOREBAY_CONTENT_H

#include <stddef.h>
#include <stdint.h>

/* Returns the eight bytes at position 8 * index. As a double the word is finite, so that tools
 * which compare numbers (h5diff) compare all of them. */
uint64_t content_word(uint64_t seed, uint64_t index);

/* Fills `buffer` with the bytes at `position` .. `position + length`. */
void content_fill(uint64_t seed, uint64_t position, void *buffer, size_t length);

/* Returns the index of the first byte in `buffer` that is not the content, or `length`. */
size_t content_check(uint64_t seed, uint64_t position, const void *buffer, size_t length);

/* Returns one byte of the content, for messages. */
unsigned char content_byte(uint64_t seed, uint64_t position);

#endif
