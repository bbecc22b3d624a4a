/*
 * Where a request comes from: the W3C trace context (level 1) that a client passes on, so that what
 * the daemon did is found beside what the client did.
 *
 *   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01     version, trace, the caller's span,
 * flags
 *
 * What is malformed is ignored, as the specification wants it: the request is served, without an
 * origin.
 */
#pragma once

#include "core/base.h"

#define HR_TRACEPARENT_BYTES 56U /* with the NUL */

struct hr_origin {
        bool known;
        uint8_t flags; /* bit 0: the caller records its part */
        uint64_t trace[2], span;
};

/* NULL, or what is no traceparent: not known. Of versions after 00 the part that 00 has is
 * taken. */
void hr_origin_parse(const char *text, struct hr_origin *ret_origin);
/* The same trace with another span. */
void hr_origin_write(const struct hr_origin *origin, uint64_t span,
                     char text[HR_TRACEPARENT_BYTES]);
