/*
 * The words every room uses: attributes, cleanup, assertions, checked arithmetic.
 *
 * HR_ASSERT is for faults of our own and stays on in release builds. Nothing that a peer sends and
 * nothing that a device does may reach one; such conditions are statuses (core/status.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HR_NODISCARD __attribute__((warn_unused_result))
#define HR_PRINTF(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#define HR_UNUSED __attribute__((unused))
#define HR_NORETURN __attribute__((noreturn))

/* Called when something fails: what leads to it lies apart from the code around it, which then
 * takes fewer cache lines. */
#define HR_COLD __attribute__((cold))

/* Calls fn(&variable) when the variable leaves its scope. */
#define HR_CLEANUP(fn) __attribute__((cleanup(fn)))

/* Evaluates to the pointer and leaves NULL behind, so that a cleanup does nothing. */
#define HR_STEAL(pointer)                                                                          \
        __extension__({                                                                            \
                __typeof__(pointer) hr_stolen = (pointer);                                         \
                (pointer) = NULL;                                                                  \
                hr_stolen;                                                                         \
        })

/* Defines name(T **) for HR_CLEANUP from a destructor that accepts NULL. */
#define HR_DEFINE_CLEANUP(type, name, destructor)                                                  \
        static inline HR_UNUSED void name(type *pointer) {                                         \
                (void) destructor(*pointer);                                                       \
        }

#define HR_CONTAINER_OF(pointer, type, member)                                                     \
        ((type *) (void *) ((char *) (pointer) - offsetof(type, member)))

#define HR_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define HR_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HR_MAX(a, b) ((a) > (b) ? (a) : (b))
#define HR_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define HR_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Prints the failed condition to stderr and ends the process. */
HR_NORETURN void hr_assert_failed(const char *condition, const char *file, int line);

#define HR_ASSERT(condition)                                                                       \
        do {                                                                                       \
                if (HR_UNLIKELY(!(condition)))                                                     \
                        hr_assert_failed(#condition, __FILE__, __LINE__);                          \
        } while (0)

/* Each returns false, and leaves *ret_result alone, when the true result does not fit. */
HR_NODISCARD static inline bool hr_add_u64(uint64_t a, uint64_t b, uint64_t *ret_result) {
        uint64_t result;

        if (__builtin_add_overflow(a, b, &result))
                return false;
        *ret_result = result;
        return true;
}

HR_NODISCARD static inline bool hr_mul_u64(uint64_t a, uint64_t b, uint64_t *ret_result) {
        uint64_t result;

        if (__builtin_mul_overflow(a, b, &result))
                return false;
        *ret_result = result;
        return true;
}

/* Rounds up to a multiple of align, a power of two. */
HR_NODISCARD static inline bool hr_align_up_u64(uint64_t value, uint64_t align,
                                                uint64_t *ret_result) {
        uint64_t sum;

        if (!hr_add_u64(value, align - 1, &sum))
                return false;
        *ret_result = sum & ~(align - 1);
        return true;
}

/* Bit sets over device or buffer-kind indices: bit i of word i / 64. */
static inline bool hr_bit_get(const uint64_t *words, uint32_t index) {
        return (words[index / 64] >> (index % 64)) & 1U;
}

static inline void hr_bit_set(uint64_t *words, uint32_t index) {
        words[index / 64] |= (uint64_t) 1 << (index % 64);
}

static inline uint32_t hr_bit_words(uint32_t count) {
        return (count + 63) / 64;
}
