/* Lower-case hexadecimal fields of fixed places; zeroes are no identifiers. */
#include "daemon/origin.h"

#include <stdio.h>
#include <string.h>

#define LENGTH (HR_TRACEPARENT_BYTES - 1)

/* Digits at text, exactly `count` <= 16 of them. */
static bool hex_take(const char *text, int count, uint64_t *ret_value) {
        uint64_t value = 0;

        for (int i = 0; i < count; i++) {
                const char c = text[i];

                if (c >= '0' && c <= '9')
                        value = value << 4 | (uint64_t) (c - '0');
                else if (c >= 'a' && c <= 'f')
                        value = value << 4 | (uint64_t) (c - 'a' + 10);
                else
                        return false;
        }
        *ret_value = value;
        return true;
}

void hr_origin_parse(const char *text, struct hr_origin *ret_origin) {
        const size_t length = text ? strnlen(text, LENGTH + 1) : 0;
        uint64_t version, high, low, span, flags;

        *ret_origin = (struct hr_origin){0};
        if (length < LENGTH || text[2] != '-' || text[35] != '-' || text[52] != '-')
                return;
        if (!hex_take(text, 2, &version) || !hex_take(text + 3, 16, &high) ||
            !hex_take(text + 19, 16, &low) || !hex_take(text + 36, 16, &span) ||
            !hex_take(text + 53, 2, &flags))
                return;
        if (version == 0xff || (high == 0 && low == 0) || span == 0)
                return;
        /* A later version may have more to say, behind a hyphen. */
        if (length > LENGTH && (version == 0 || text[LENGTH] != '-'))
                return;
        *ret_origin = (struct hr_origin){
                .known = true,
                .flags = (uint8_t) flags,
                .trace = {high, low},
                .span = span,
        };
}

void hr_origin_write(const struct hr_origin *origin, uint64_t span,
                     char text[HR_TRACEPARENT_BYTES]) {
        (void) snprintf(text, HR_TRACEPARENT_BYTES, "00-%016llx%016llx-%016llx-%02x",
                        (unsigned long long) origin->trace[0],
                        (unsigned long long) origin->trace[1], (unsigned long long) span,
                        origin->flags);
}
