/* Trace contexts: what is taken, and that everything else is ignored. */
#include "daemon/origin.h"
#include "tests/harness.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

HR_TEST(origin_is_taken_and_written) {
        char text[HR_TRACEPARENT_BYTES];
        struct hr_origin origin;

        hr_origin_parse("00-" TRACE "-" SPAN "-01", &origin);
        HR_EXPECT(origin.known);
        HR_EXPECT(origin.trace[0] == 0x4bf92f3577b34da6 && origin.trace[1] == 0xa3ce929d0e0e4736);
        HR_EXPECT(origin.span == 0x00f067aa0ba902b7 && origin.flags == 1);
        hr_origin_write(&origin, 0xabc, text);
        HR_EXPECT_STREQ(text, "00-" TRACE "-0000000000000abc-01");
}

HR_TEST(origin_of_later_versions) {
        struct hr_origin origin;

        hr_origin_parse("01-" TRACE "-" SPAN "-00", &origin);
        HR_EXPECT(origin.known && origin.flags == 0);
        hr_origin_parse("fe-" TRACE "-" SPAN "-ff-more-of-it", &origin);
        HR_EXPECT(origin.known && origin.flags == 0xff);
}

HR_TEST(origin_that_is_malformed_is_ignored) {
        static const char *const texts[] = {
                "",
                "00",
                "00-" TRACE "-" SPAN "-0",           /* short */
                "00-" TRACE "-" SPAN "-01-",         /* version 00 ends here */
                "00-" TRACE "-" SPAN "-01x",
                "01-" TRACE "-" SPAN "-01x",         /* more begins with a hyphen */
                "ff-" TRACE "-" SPAN "-01",          /* no version */
                "0g-" TRACE "-" SPAN "-01",
                "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01", /* upper case */
                "00-00000000000000000000000000000000-" SPAN "-01",
                "00-" TRACE "-0000000000000000-01",
                "00_" TRACE "-" SPAN "-01",
                "00-" TRACE "_" SPAN "-01",
                "00-" TRACE "-" SPAN "_01",
                "00-" TRACE "-" SPAN "-0 ",
                " 00-" TRACE "-" SPAN "-0",
        };
        struct hr_origin origin;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(texts); i++) {
                hr_origin_parse(texts[i], &origin);
                if (origin.known)
                        hr_test_fail(__FILE__, __LINE__, "taken: %s", texts[i]);
        }
        hr_origin_parse(NULL, &origin);
        HR_EXPECT(!origin.known);
}
