/*
 * A fault that is only there in a build with -Dplanted_fault=true: it shows that the target's
 * fuzzer finds what lies some steps away from its seeds (suite fuzz-planted of ./check --full).
 */
#pragma once

/* For functions of a target that run in another thread than the fuzzer: what they cover is not
 * counted. */
#ifdef __clang__
#define HR_UNCOUNTED __attribute__((no_sanitize("coverage")))
#else
#define HR_UNCOUNTED
#endif

#ifdef HR_PLANTED_FAULT
#define HR_PLANT(condition)                                                                        \
        do {                                                                                       \
                if (condition)                                                                     \
                        __builtin_trap();                                                          \
        } while (0)
#else
#define HR_PLANT(condition) ((void) 0)
#endif
