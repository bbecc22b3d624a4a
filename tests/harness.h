/*
 * The C test harness. One executable per test file: HR_TEST(name) { ... } as often as needed; main
 * is in harness.c. Each test runs in its own process with a time limit, so that a crash or a hang
 * is one failed test. Prints one line per failure and ends with `N passed, M failed, K skipped`.
 *
 *   prog                 all tests        prog -l              list them
 *   prog NAME...         these tests      prog -n NAME         in this process (for a debugger)
 */
#pragma once

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

typedef void (*hr_test_fn)(void);

void hr_test_register(const char *name, hr_test_fn fn, unsigned limit_s);
/* Ends the current test as failed or skipped. */
HR_NORETURN HR_PRINTF(3, 4) void hr_test_fail(const char *file, int line, const char *format, ...);
HR_NORETURN HR_PRINTF(1, 2) void hr_test_skip(const char *format, ...);

#define HR_TEST_LIMIT(test_name, seconds)                                                          \
        static void test_name(void);                                                               \
        __attribute__((constructor)) static void test_name##_register(void) {                      \
                hr_test_register(#test_name, test_name, seconds);                                  \
        }                                                                                          \
        static void test_name(void)
#define HR_TEST(test_name) HR_TEST_LIMIT(test_name, 20)

#define HR_EXPECT(condition)                                                                       \
        do {                                                                                       \
                if (!(condition))                                                                  \
                        hr_test_fail(__FILE__, __LINE__, "%s", #condition);                        \
        } while (0)
#define HR_EXPECT_EQ(a, b)                                                                         \
        do {                                                                                       \
                long long hr_a = (long long) (a), hr_b = (long long) (b);                          \
                if (hr_a != hr_b)                                                                  \
                        hr_test_fail(__FILE__, __LINE__, "%s = %lld, %s = %lld", #a, hr_a, #b,     \
                                     hr_b);                                                        \
        } while (0)
#define HR_EXPECT_STREQ(a, b)                                                                      \
        do {                                                                                       \
                const char *hr_a = (a), *hr_b = (b);                                               \
                if (strcmp(hr_a, hr_b) != 0)                                                       \
                        hr_test_fail(__FILE__, __LINE__, "%s = \"%s\", expected \"%s\"", #a, hr_a, \
                                     hr_b);                                                        \
        } while (0)
#define HR_EXPECT_OK(expression, diag)                                                             \
        do {                                                                                       \
                hr_status hr_expect_status = (expression);                                         \
                if (hr_expect_status != HR_OK)                                                     \
                        hr_test_fail(__FILE__, __LINE__, "%s: %s (%s)", #expression,               \
                                     hr_status_name(hr_expect_status), (diag)->words);             \
        } while (0)
