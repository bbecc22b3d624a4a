#include "daemon/beneath.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness.h"

static char root[64];

static void make_file(const char *path) {
        int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

        HR_EXPECT(fd >= 0 && write(fd, "x", 1) == 1);
        close(fd);
}

static void make_root(void) {
        snprintf(root, sizeof root, "/tmp/hr-beneath-XXXXXX");
        HR_EXPECT(mkdtemp(root) != NULL);
        HR_EXPECT(chdir(root) == 0);
        HR_EXPECT(mkdir("models", 0700) == 0 && mkdir("models/sub", 0700) == 0);
        make_file("models/good");
        make_file("models/sub/deep");
        make_file("outside");
        HR_EXPECT(symlink("good", "models/link") == 0);
        HR_EXPECT(symlink("../outside", "models/escape") == 0);
        HR_EXPECT(symlink("sub", "models/sublink") == 0);
        HR_EXPECT(symlink("/", "models/slash") == 0);
        HR_EXPECT(link("outside", "models/hard") == 0);
        HR_EXPECT(mkfifo("models/fifo", 0600) == 0);
        HR_EXPECT(symlink("models", "alias") == 0);
        make_file("models/secret");
        HR_EXPECT(chmod("models/secret", 0) == 0);
}

static void remove_root(void) {
        char command[128];

        snprintf(command, sizeof command, "rm -rf '%s'", root);
        HR_EXPECT(system(command) == 0);
}

/* Both ways of walking must give the same answers. A FIFO must not make them wait. */
HR_TEST_LIMIT(opens_regular_files_below_and_nothing_else, 2) {
        static const struct {
                const char *path;
                hr_status status;
                const char *reason;
        } cases[] = {
                {"good", HR_OK, NULL},
                {"sub/deep", HR_OK, NULL},
                {"hard", HR_OK, NULL},
                {"missing", HR_E_NOT_FOUND, "FILE"},
                {"sub/missing", HR_E_NOT_FOUND, "FILE"},
                {"missing/deep", HR_E_NOT_FOUND, "FILE"},
                {"good/deep", HR_E_NOT_FOUND, "FILE"},
                {"sub", HR_E_NOT_FOUND, "FILE"},
                {"link", HR_E_NOT_FOUND, "FILE"},
                {"escape", HR_E_NOT_FOUND, "FILE"},
                {"sublink/deep", HR_E_NOT_FOUND, "FILE"},
                {"slash/etc/passwd", HR_E_NOT_FOUND, "FILE"},
                {"fifo", HR_E_NOT_FOUND, "FILE"},
                {"../outside", HR_E_INVALID, "PATH"},
                {"sub/../good", HR_E_INVALID, "PATH"},
                {"./good", HR_E_INVALID, "PATH"},
                {"/etc/passwd", HR_E_INVALID, "PATH"},
                {"", HR_E_INVALID, "PATH"},
                {"sub//deep", HR_E_INVALID, "PATH"},
                {"sub/", HR_E_INVALID, "PATH"},
                {"..", HR_E_INVALID, "PATH"},
                {"a\nb", HR_E_INVALID, "PATH"},
                {"https://example.com/model", HR_E_INVALID, "PATH"},
                {"file:///etc/passwd", HR_E_INVALID, "PATH"},
                {"proc/self/fd/3", HR_E_NOT_FOUND, "FILE"},
        };

        make_root();
        for (unsigned way = 0; way < 2; way++)
                for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                        struct hr_diag diag = {0};
                        int fd = -1;
                        const hr_status status =
                                hr_open_beneath("models", cases[i].path, way == 1, &diag, &fd);

                        if (status != cases[i].status)
                                hr_test_fail(__FILE__, __LINE__, "'%s' (way %u): %s %s",
                                             cases[i].path, way, hr_status_name(status),
                                             diag.words);
                        if (status == HR_OK) {
                                HR_EXPECT(fcntl(fd, F_GETFD) & FD_CLOEXEC);
                                close(fd);
                                continue;
                        }
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
                        HR_EXPECT(fd == -1);
                        HR_EXPECT(strlen(cases[i].path) < 3 || !strstr(diag.words, cases[i].path));
                }
        remove_root();
}

HR_TEST(missing_and_forbidden_have_the_same_words) {
        struct hr_diag missing = {0}, forbidden = {0}, link_words = {0};
        int fd = -1;

        make_root();
        HR_EXPECT_EQ(hr_open_beneath("models", "missing", false, &missing, &fd), HR_E_NOT_FOUND);
        HR_EXPECT_EQ(hr_open_beneath("models", "escape", false, &link_words, &fd),
                     HR_E_NOT_FOUND);
        HR_EXPECT_STREQ(missing.words, link_words.words);
        if (geteuid() != 0) { /* root may read anything */
                HR_EXPECT_EQ(hr_open_beneath("models", "secret", false, &forbidden, &fd),
                             HR_E_NOT_FOUND);
                HR_EXPECT_STREQ(missing.words, forbidden.words);
        }
        remove_root();
}

HR_TEST(the_directory_itself_may_be_a_link) {
        struct hr_diag diag = {0};
        int fd = -1;

        make_root();
        HR_EXPECT_OK(hr_open_beneath("alias", "good", false, &diag, &fd), &diag);
        close(fd);
        HR_EXPECT_EQ(hr_open_beneath("nowhere", "good", false, &diag, &fd), HR_E_NOT_FOUND);
        remove_root();
}

HR_TEST(long_paths) {
        static char path[HR_PATH_BYTES_MAX + 2];
        struct hr_diag diag = {0};

        memset(path, 'a', sizeof path - 1);
        HR_EXPECT_EQ(hr_path_check(path, &diag), HR_E_INVALID);
        for (size_t i = 200; i < HR_PATH_BYTES_MAX; i += 201)
                path[i] = '/';
        HR_EXPECT_EQ(hr_path_check(path, NULL), HR_E_INVALID);
        path[HR_PATH_BYTES_MAX] = '\0';
        hr_diag_clear(&diag);
        HR_EXPECT_OK(hr_path_check(path, &diag), &diag);
        path[255] = path[200];
        memset(path, 'b', 256);
        HR_EXPECT_EQ(hr_path_check(path, NULL), HR_E_INVALID);
}
