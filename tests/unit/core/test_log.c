/* Log lines: what a peer says stays inside the field that it is said in. */
#include "core/log.h"
#include "tests/harness.h"

static char seen_words[2048];
static char seen[HR_LOG_FIELDS_MAX][HR_LOG_VALUE_BYTES_MAX];
static size_t seen_count;
static char seen_line[8192];

static void sink(hr_log_level level, const char *topic, const char *words,
                 const struct hr_log_field *fields, size_t count) {
        (void) snprintf(seen_words, sizeof seen_words, "%s", words);
        seen_count = count;
        for (size_t i = 0; i < count; i++)
                (void) snprintf(seen[i], sizeof seen[i], "%s",
                                fields[i].value ? fields[i].value : "(none)");
        (void) hr_log_line(level, topic, words, fields, count, seen_line, sizeof seen_line);
}

HR_TEST(log_fields_are_in_quotes) {
        const struct hr_log_field fields[] = {
                {"request", "7"},
                {"principal", "uid 1000"},
                {"nothing", NULL},
                {"empty", ""},
                {"said", "x\" code=0 \"y"},
        };

        hr_log_set_sink(sink);
        hr_log_fields(HR_LOG_NOTICE, "request", fields, HR_ARRAY_LENGTH(fields), "%s failed",
                      "RUN");
        HR_EXPECT_STREQ(seen_line, "headraced: notice: request: RUN failed request=7 "
                                   "principal=\"uid 1000\" empty=\"\" said=\"x' code=0 'y\"\n");
        HR_EXPECT_EQ(seen_count, 5);
        HR_EXPECT_STREQ(seen[4], "x\" code=0 \"y");
        HR_EXPECT_STREQ(seen[2], "(none)");
}

HR_TEST(log_takes_no_orders) {
        static const struct {
                const char *said, *shown;
        } cases[] = {
                {"two\nlines", "two?lines"},
                {"\x1b[31mred\x07", "?[31mred?"},
                {"back\rspace\b\x7f", "back?space??"},
                {"c1 \xc2\x9b" "31m", "c1 ??31m"},
                {"\xe2\x80\xa8 \xe2\x80\xae", "??? ???"},
                {"gr\xc3\xbc\xc3\x9f" "e \xe2\x82\xac \xf0\x9f\x8c\x8a",
                 "gr\xc3\xbc\xc3\x9f" "e \xe2\x82\xac \xf0\x9f\x8c\x8a"},
                {"cut \xe2\x82", "cut ??"},
                {"\xc0\xaf \xed\xa0\x80 \xf5\x80\x80\x80", "?? ??? ????"},
        };

        hr_log_set_sink(sink);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const struct hr_log_field field = {"said", cases[i].said};

                hr_log(HR_LOG_ERROR, "test", "%s", cases[i].said);
                HR_EXPECT_STREQ(seen_words, cases[i].shown);
                hr_log_fields(HR_LOG_ERROR, "test", &field, 1, "x");
                HR_EXPECT_STREQ(seen[0], cases[i].shown);
        }
}

HR_TEST(log_cuts_what_is_long) {
        static char text[5000];
        struct hr_log_field fields[HR_LOG_FIELDS_MAX + 1];
        char line[64];

        memset(text, 'a', sizeof text - 1);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(fields); i++)
                fields[i] = (struct hr_log_field){"f", text};
        hr_log_set_sink(sink);
        hr_log_fields(HR_LOG_ERROR, "test", fields, HR_ARRAY_LENGTH(fields), "%s", text);
        HR_EXPECT_EQ(seen_count, HR_LOG_FIELDS_MAX);
        HR_EXPECT_EQ(strlen(seen[0]), HR_LOG_VALUE_BYTES_MAX - 1);
        HR_EXPECT(strlen(seen_words) < sizeof seen_words / 2 + 1);
        HR_EXPECT_EQ(hr_log_line(HR_LOG_INFO, "t", text, fields, 3, line, sizeof line),
                     sizeof line - 1);
        HR_EXPECT(line[sizeof line - 2] == '\n' && line[sizeof line - 1] == '\0');
}

HR_TEST(log_level_holds_for_sinks) {
        hr_log_set_sink(sink);
        hr_log_set_level(HR_LOG_WARNING);
        seen_words[0] = '\0';
        hr_log(HR_LOG_NOTICE, "test", "no");
        HR_EXPECT_STREQ(seen_words, "");
        hr_log(HR_LOG_WARNING, "test", "yes");
        HR_EXPECT_STREQ(seen_words, "yes");
}
