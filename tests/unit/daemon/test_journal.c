/* The journal's protocol, and when it is spoken. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/journal.h"
#include "tests/harness.h"

HR_TEST(journal_entry_has_the_fields) {
        const struct hr_log_field fields[] = {
                {"request", "7"}, {"absent", NULL}, {"trace_id", "4bf9"}};
        uint8_t entry[512];
        size_t bytes = hr_journal_entry(HR_LOG_WARNING, "request", "RUN failed", fields,
                                        HR_ARRAY_LENGTH(fields), entry, sizeof entry - 1);

        entry[bytes] = '\0';
        HR_EXPECT_STREQ((const char *) entry,
                        "MESSAGE=RUN failed request=7 trace_id=4bf9\nPRIORITY=4\n"
                        "SYSLOG_IDENTIFIER=headraced\n"
                        "HEADRACE_TOPIC=request\nHEADRACE_REQUEST=7\n"
                        "HEADRACE_TRACE_ID=4bf9\n");
        HR_EXPECT_EQ(hr_journal_entry(HR_LOG_WARNING, "request", "RUN failed", fields,
                                      HR_ARRAY_LENGTH(fields), entry, bytes - 1),
                     0);
}

/* The log has no such values; the protocol is kept all the same. */
HR_TEST(journal_values_cannot_become_fields) {
        const struct hr_log_field field = {"said", "x\nMESSAGE=forged"};
        static const char want[] = "HEADRACE_SAID\n\x10\0\0\0\0\0\0\0x\nMESSAGE=forged\n";
        uint8_t entry[512];
        size_t bytes =
                hr_journal_entry(HR_LOG_ERROR, "t", "w", &field, 1, entry, sizeof entry);

        HR_EXPECT(bytes > sizeof want);
        HR_EXPECT(memcmp(entry + bytes - (sizeof want - 1), want, sizeof want - 1) == 0);
}

/* A socket in the journal's place; bound to `path`. */
static int journal_listen(const char *path) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);

        (void) snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
        (void) unlink(path);
        HR_EXPECT(bind(fd, (const struct sockaddr *) &address, sizeof address) == 0);
        return fd;
}

static void stream_name(char *text, size_t room) {
        struct stat status;

        HR_EXPECT(fstat(STDERR_FILENO, &status) == 0);
        (void) snprintf(text, room, "%llu:%llu", (unsigned long long) status.st_dev,
                        (unsigned long long) status.st_ino);
}

HR_TEST(journal_is_spoken_to_where_it_is_stderr) {
        char path[64], stream[64], got[512], other[80];
        int fd;
        ssize_t bytes;

        (void) snprintf(path, sizeof path, "/tmp/hr-journal-%d", (int) getpid());
        fd = journal_listen(path);
        stream_name(stream, sizeof stream);
        (void) snprintf(other, sizeof other, "%s0", stream);
        /* Not said, another stream, nonsense: stderr. */
        (void) unsetenv("JOURNAL_STREAM");
        hr_journal_open(path);
        (void) setenv("JOURNAL_STREAM", other, 1);
        hr_journal_open(path);
        (void) setenv("JOURNAL_STREAM", "stderr", 1);
        hr_journal_open(path);
        hr_log(HR_LOG_ERROR, "test", "to stderr");
        HR_EXPECT(recv(fd, got, sizeof got, 0) < 0 && errno == EAGAIN);
        (void) setenv("JOURNAL_STREAM", stream, 1);
        hr_journal_open("/nowhere/at/all");
        hr_log(HR_LOG_ERROR, "test", "to stderr, too");
        hr_journal_open(path);
        hr_log(HR_LOG_ERROR, "test", "to the\njournal");
        bytes = recv(fd, got, sizeof got - 1, 0);
        HR_EXPECT(bytes > 0);
        got[bytes] = '\0';
        HR_EXPECT_STREQ(got, "MESSAGE=to the?journal\nPRIORITY=3\nSYSLOG_IDENTIFIER=headraced\n"
                             "HEADRACE_TOPIC=test\n");
        /* The journal has gone: the line goes to stderr, and nothing else happens. */
        (void) close(fd);
        (void) unlink(path);
        hr_log(HR_LOG_ERROR, "test", "behind it");
}
