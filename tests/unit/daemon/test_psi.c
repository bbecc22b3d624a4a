/* What is read of the kernel's account, and of the lines that name a control group. */
#include "daemon/psi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"

HR_TEST(the_total_of_some) {
        uint64_t us = 0;

        HR_EXPECT(hr_psi_parse("some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\n"
                               "full avg10=0.00 avg60=0.00 avg300=0.00 total=567\n",
                               &us));
        HR_EXPECT_EQ(us, UINT64_C(1234));
        HR_EXPECT(hr_psi_parse(
                "full avg10=9.00 total=1\nsome avg10=1.00 total=18446744073709551615", &us));
        HR_EXPECT_EQ(us, UINT64_MAX);
        HR_EXPECT(hr_psi_parse("some total=0\n", &us));
        HR_EXPECT_EQ(us, UINT64_C(0));
}

HR_TEST(what_says_nothing) {
        static const char *const texts[] = {
                "",
                "\n",
                "\n\n\n",
                "full avg10=0.00 total=567\n",
                "some avg10=0.00\n",
                "some avg10=0.00\nfull total=567\n",
                "some total=\n",
                "some total=-1\n",
                "some total= 1\n",
                "some total=+1\n",
                "some total=1x\n",
                "some total=1 \n",
                "some total=18446744073709551616\n",
                "something total=1\n",
                " some total=1\n",
                "sometotal=1\n",
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(texts); i++) {
                uint64_t us = 77;

                HR_EXPECT(!hr_psi_parse(texts[i], &us));
                HR_EXPECT_EQ(us, UINT64_C(77));
        }
}

HR_TEST(the_group_of_version_2) {
        static const struct {
                const char *lines, *group;
        } rows[] = {
                {"0::/\n", "/"},
                {"0::/system.slice/headrace.service\n", "/system.slice/headrace.service"},
                {"4:memory:/one\n1:cpu:/two\n0::/three", "/three"},
                {"4:memory:/one\n", NULL},
                {"", NULL},
                {"10::/one\n", NULL},
                {"0::\n", NULL},
                {"0::relative\n", NULL},
                {"0::/of a name that is too long for its room, by one\n", NULL},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(rows); i++) {
                char group[48];
                const bool found = hr_psi_group(rows[i].lines, group, sizeof group);

                HR_EXPECT_EQ(found, rows[i].group != NULL);
                if (found && rows[i].group)
                        HR_EXPECT(strcmp(group, rows[i].group) == 0);
        }
}

HR_TEST(files) {
        char path[] = "/tmp/headrace-psi-XXXXXX";
        const int fd = mkstemp(path);
        struct hr_diag diag = {0};
        uint64_t us = 0;

        HR_EXPECT(fd >= 0);
        HR_EXPECT_EQ(hr_psi_read(path, &diag, &us), HR_E_INVALID);
        HR_EXPECT(write(fd, "some avg10=0.00 total=42\n", 25) == 25);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_psi_read(path, &diag, &us), HR_OK);
        HR_EXPECT_EQ(us, UINT64_C(42));
        (void) close(fd);
        (void) unlink(path);
        HR_EXPECT_EQ(hr_psi_read(path, &diag, &us), HR_E_NOT_FOUND);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_psi_read("/tmp", &diag, &us), HR_E_NOT_FOUND);
}

HR_TEST(what_is_found_can_be_read) {
        char path[HR_PSI_PATH_BYTES];
        uint64_t us = 0;

        if (hr_psi_find(path))
                HR_EXPECT_EQ(hr_psi_read(path, NULL, &us), HR_OK);
}
