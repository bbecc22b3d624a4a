/*
 * A datagram that the journal cannot take now, because it is behind or starts anew, goes to stderr,
 * which is its stream: the line is there, without fields.
 */
#include "daemon/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int journal_fd = -1;

/* syslog's numbers. */
static const int priorities[] = {
        [HR_LOG_ERROR] = 3, [HR_LOG_WARNING] = 4, [HR_LOG_NOTICE] = 5,
        [HR_LOG_INFO] = 6,  [HR_LOG_DEBUG] = 7,
};

struct entry {
        uint8_t *bytes;
        size_t used, room;
        bool full;
};

static void entry_put(struct entry *entry, const void *bytes, size_t count) {
        if (count > entry->room - entry->used) {
                entry->full = true;
                return;
        }
        memcpy(entry->bytes + entry->used, bytes, count);
        entry->used += count;
}

static void entry_field(struct entry *entry, const char *prefix, const char *name,
                        const char *value) {
        const size_t bytes = strlen(value);
        uint8_t length[8];

        entry_put(entry, prefix, strlen(prefix));
        for (; *name; name++) {
                const char capital = *name >= 'a' && *name <= 'z' ? (char) (*name - 'a' + 'A')
                                                                  : *name;

                entry_put(entry, &capital, 1);
        }
        if (memchr(value, '\n', bytes)) {
                for (size_t i = 0; i < sizeof length; i++)
                        length[i] = (uint8_t) ((uint64_t) bytes >> 8 * i);
                entry_put(entry, "\n", 1);
                entry_put(entry, length, sizeof length);
        } else {
                entry_put(entry, "=", 1);
        }
        entry_put(entry, value, bytes);
        entry_put(entry, "\n", 1);
}

size_t hr_journal_entry(hr_log_level level, const char *topic, const char *words,
                        const struct hr_log_field *fields, size_t count, uint8_t *bytes,
                        size_t room) {
        struct entry entry = {.bytes = bytes, .room = room};
        char message[HR_JOURNAL_ENTRY_BYTES_MAX / 2];
        char priority[2] = {(char) ('0' + priorities[level]), '\0'};

        (void) hr_log_text(words, fields, count, message, sizeof message);
        entry_field(&entry, "", "MESSAGE", message);
        entry_field(&entry, "", "PRIORITY", priority);
        entry_field(&entry, "", "SYSLOG_IDENTIFIER", "headraced");
        entry_field(&entry, "HEADRACE_", "TOPIC", topic);
        for (size_t i = 0; i < count; i++)
                if (fields[i].value)
                        entry_field(&entry, "HEADRACE_", fields[i].name, fields[i].value);
        return entry.full ? 0 : entry.used;
}

/* Thread: any; a datagram is sent whole. */
static void journal_sink(hr_log_level level, const char *topic, const char *words,
                         const struct hr_log_field *fields, size_t count) {
        uint8_t entry[HR_JOURNAL_ENTRY_BYTES_MAX];
        char line[HR_JOURNAL_ENTRY_BYTES_MAX];
        size_t bytes = hr_journal_entry(level, topic, words, fields, count, entry, sizeof entry);

        if (bytes > 0 && send(journal_fd, entry, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
                return;
        bytes = hr_log_line(level, topic, words, fields, count, line, sizeof line);
        if (write(STDERR_FILENO, line, bytes) < 0)
                return;
}

/* "device:inode" of the stream that the service manager has given; stderr may be another by now. */
static bool stderr_is_the_stream(void) {
        const char *text = getenv("JOURNAL_STREAM");
        unsigned long long device, inode;
        struct stat status;
        char more;

        return text && sscanf(text, "%llu:%llu%c", &device, &inode, &more) == 2 &&
               fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device &&
               status.st_ino == inode;
}

void hr_journal_open(const char *path) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd;

        if (strlen(path) >= sizeof address.sun_path || !stderr_is_the_stream())
                return;
        (void) snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return;
        if (connect(fd, (const struct sockaddr *) &address, sizeof address) != 0) {
                (void) close(fd);
                return;
        }
        journal_fd = fd;
        hr_log_set_sink(journal_sink);
}
