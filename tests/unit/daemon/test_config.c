#include "daemon/config.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/harness.h"

static hr_status read_text(const char *text, struct hr_config *config, struct hr_diag *diag) {
        HR_EXPECT_OK(hr_config_init(config, diag), diag);
        return hr_config_read_text(config, "test.conf", text, strlen(text), diag);
}

static hr_status read_whole(const char *text, struct hr_config *config, struct hr_diag *diag) {
        hr_status status = read_text(text, config, diag);

        return status == HR_OK ? hr_config_finish(config, diag) : status;
}

#define TOKEN "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

HR_TEST(defaults) {
        struct hr_config config;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(read_whole("", &config, &diag), &diag);
        HR_EXPECT_EQ(config.log_level, HR_LOG_NOTICE);
        HR_EXPECT_EQ(config.spin_ns, 50000);
        HR_EXPECT_EQ(config.unix_mode, 0660);
        HR_EXPECT_STREQ(config.unix_path, "/run/headrace/headrace.sock");
        HR_EXPECT(!config.tcp.text && config.tcp.socket_bytes == 0 && !config.tls.text);
        HR_EXPECT_EQ(config.directory_count, 0);
        HR_EXPECT_EQ(config.limits.body_bytes, 1 << 20);
        HR_EXPECT_EQ(config.limits.hello_timeout_ns, 5 * HR_NS_PER_S);
        HR_EXPECT_EQ(config.device_count, 1);
        HR_EXPECT_STREQ(config.devices[0].name, "cpu0");
        HR_EXPECT_STREQ(config.devices[0].backend, "cpu");
        HR_EXPECT_STREQ(config.devices[0].isa, "auto");
        HR_EXPECT(!config.devices[0].isolated && config.devices[0].deterministic);
        HR_EXPECT(strcmp(config.devices[0].arithmetic, "ggml") == 0);
        HR_EXPECT(config.devices[0].graphs);
        HR_EXPECT_EQ(config.devices[0].pin_bytes, UINT64_C(8) << 30);
        hr_config_deinit(&config);
}

HR_TEST(every_type_of_value) {
        static const char text[] = "# comment\n"
                                   "[daemon]\n"
                                   "log_level = debug\n"
                                   "drain_timeout = 1500ms ; why\n"
                                   "spin=0\n"
                                   "plan_cache_bytes = 3 M\n"
                                   "optimize = no\n"
                                   "\n"
                                   "[listen]\r\n"
                                   "unix = /tmp/x.sock\r\n"
                                   "unix_mode = 600\n"
                                   "tcp = 127.1.2.3:7070\n"
                                   "[models]\n"
                                   "directories = /a:/b c\n"
                                   "directories = /d\n"
                                   "[limits]\n"
                                   "copies = 7\n"
                                   "graph_bytes = 2g\n"
                                   "[device one]\n"
                                   "memory = isolated\n"
                                   "threads = 3\n"
                                   "memory_cap = 1G\n"
                                   "expert_bytes = 3M\n"
                                   "isa = portable\n"
                                   "deny_ops = MUL_MAT,ADD\n"
                                   "delay = 20us\n"
                                   "deterministic = off\n"
                                   "arithmetic = fast\n"
                                   "graphs = no\n"
                                   "pin_bytes = 3M\n"
                                   "[device two]\n"
                                   "backend = cpu\n";
        struct hr_config config;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(read_whole(text, &config, &diag), &diag);
        HR_EXPECT_EQ(config.log_level, HR_LOG_DEBUG);
        HR_EXPECT_EQ(config.drain_timeout_ns, 1500 * HR_NS_PER_MS);
        HR_EXPECT_EQ(config.spin_ns, 0);
        HR_EXPECT_EQ(config.plan_cache_bytes, 3 << 20);
        HR_EXPECT(!config.optimize);
        HR_EXPECT_STREQ(config.unix_path, "/tmp/x.sock");
        HR_EXPECT_EQ(config.unix_mode, 0600);
        HR_EXPECT_EQ(hr_socket_port(&config.tcp.socket), 7070);
        HR_EXPECT_EQ(ntohl(((struct sockaddr_in *) &config.tcp.socket)->sin_addr.s_addr),
                     0x7f010203);
        HR_EXPECT_EQ(config.directory_count, 3);
        HR_EXPECT_STREQ(config.directories[1], "/b c");
        HR_EXPECT_STREQ(config.directories[2], "/d");
        HR_EXPECT_EQ(config.limits.copies, 7);
        HR_EXPECT_EQ(config.limits.graph_bytes, INT64_C(2) << 30);
        HR_EXPECT_EQ(config.device_count, 2);
        HR_EXPECT_STREQ(config.devices[0].name, "one");
        HR_EXPECT(config.devices[0].isolated && !config.devices[0].deterministic);
        HR_EXPECT(strcmp(config.devices[0].arithmetic, "fast") == 0);
        HR_EXPECT(!config.devices[0].graphs && config.devices[1].graphs);
        HR_EXPECT_EQ(config.devices[0].pin_bytes, 3 << 20);
        HR_EXPECT_EQ(config.devices[0].threads, 3);
        HR_EXPECT_EQ(config.devices[0].memory_cap, 1 << 30);
        HR_EXPECT_EQ(config.devices[0].expert_bytes, 3 << 20);
        HR_EXPECT_STREQ(config.devices[0].isa, "portable");
        HR_EXPECT_STREQ(config.devices[0].deny_ops, "MUL_MAT,ADD");
        HR_EXPECT_EQ(config.devices[0].delay_ns, 20000);
        HR_EXPECT_STREQ(config.devices[1].name, "two");
        HR_EXPECT(!config.devices[1].isolated);
        hr_config_deinit(&config);
}

HR_TEST(booleans_take_these_words_and_no_others) {
        static const struct {
                const char *word;
                int value; /* -1 = refused */
        } cases[] = {{"yes", 1}, {"no", 0},  {"true", 1}, {"false", 0}, {"on", 1},     {"off", 0},
                     {"1", 1},   {"0", 0},   {"YES", 1},  {"True", 1},  {"", -1},      {"2", -1},
                     {"y", -1},  {"ye", -1}, {"-1", -1},  {"yess", -1}, {"yes no", -1}};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_config config;
                struct hr_diag diag = {0};
                char text[64];

                snprintf(text, sizeof text, "[device d]\ndeterministic = %s\n", cases[i].word);
                HR_EXPECT_EQ(read_text(text, &config, &diag),
                             cases[i].value < 0 ? HR_E_INVALID : HR_OK);
                if (cases[i].value >= 0)
                        HR_EXPECT_EQ(config.devices[0].deterministic, cases[i].value);
                hr_config_deinit(&config);
        }
}

/* Each names the file, the line, and the key or section. */
HR_TEST(faults_are_named) {
        static const struct {
                const char *text, *place, *word;
        } cases[] = {
                {"[daemon]\nnosuch = 1\n", "test.conf:2", "nosuch"},
                {"[nosuch]\nx = 1\n", "test.conf:1", "nosuch"},
                {"log_level = info\n", "test.conf:1", "log_level"},
                {"[daemon]\nspin = 1us\n[limits]\n[daemon]\n", "test.conf:4", "[daemon]"},
                {"[limits]\n[limits]\n", "test.conf:2", "[limits]"},
                {"[device a]\n[device b]\n[device a]\n", "test.conf:3", "[device a]"},
                {"[daemon]\nspin = 1us\nspin = 1us\n", "test.conf:3", "daemon.spin"},
                {"[device a]\nthreads = 1\nthreads = 1\n", "test.conf:3", "device.threads"},
                {"[device a b]\n", "test.conf:1", "a b"},
                {"[device ]\n", "test.conf:1", "device name"},
                {"[device]\n", "test.conf:1", "[device]"},
                {"[device fit]\n", "test.conf:1", "fit"},
                {"[device a123456789012345678901234567890x]\n", "test.conf:1", "device name"},
                {"[daemon\nspin = 1us\n", "test.conf:1", "header"},
                {"[daemon] spin = 1us\n", "test.conf:1", "header"},
                {"[daemon]\njust words\n", "test.conf:2", "KEY"},
                {"[daemon]\n spin = 1us\n", "test.conf:2", "space"},
                {"[models]\ndirectories = /a\n  /b\n", "test.conf:3", "space"},
                {"[daemon]\nspin = 5\n", "test.conf:2", "daemon.spin"},
                {"[daemon]\nspin = 5 minutes\n", "test.conf:2", "daemon.spin"},
                {"[daemon]\nspin = -5us\n", "test.conf:2", "daemon.spin"},
                {"[daemon]\nspin = 2s\n", "test.conf:2", "within"},
                {"[daemon]\nspin = 99999999999999999999us\n", "test.conf:2", "daemon.spin"},
                {"[daemon]\nspin = 99999999999999999s\n", "test.conf:2", "daemon.spin"},
                {"[daemon]\nlog_level = loud\n", "test.conf:2", "daemon.log_level"},
                {"[daemon]\nplan_cache_bytes = 1X\n", "test.conf:2", "plan_cache_bytes"},
                {"[daemon]\nplan_cache_bytes = 1.5M\n", "test.conf:2", "plan_cache_bytes"},
                {"[daemon]\nplan_cache_bytes = 18446744073709551615T\n", "test.conf:2", "size"},
                {"[daemon]\nplan_cache_bytes =\n", "test.conf:2", "plan_cache_bytes"},
                {"[listen]\nunix_mode = 888\n", "test.conf:2", "unix_mode"},
                {"[listen]\nunix_mode = 1777\n", "test.conf:2", "unix_mode"},
                {"[listen]\ntcp = example.com:7070\n", "test.conf:2", "in numbers"},
                {"[listen]\ntls = []:7070\n", "test.conf:2", "listen.tls"},
                {"[listen]\ntls = [::1:7070\n", "test.conf:2", "listen.tls"},
                {"[listen]\ninsecure = perhaps\n", "test.conf:2", "listen.insecure"},
                {"[principal a b]\n", "test.conf:1", "principal name"},
                {"[principal a]\n[principal a]\n", "test.conf:2", "[principal a]"},
                {"[principal a]\nuid = 1,no-such-user\n", "test.conf:2", "no-such-user"},
                {"[principal a]\nuid = 4294967295\n", "test.conf:2", "principal.uid"},
                {"[principal a]\nuid = -1\n", "test.conf:2", "principal.uid"},
                {"[principal a]\ngid = no-such-group\n", "test.conf:2", "no-such-group"},
                {"[principal a]\npermissions = run, fly\n", "test.conf:2", "fly"},
                {"[principal a]\ntoken_sha256 = 12\n", "test.conf:2", "SHA-256"},
                {"[principal a]\nuid = 1\nuid = 2\n", "test.conf:3", "twice"},
                {"[listen]\ntcp = 127.0.0.1\n", "test.conf:2", "listen.tcp"},
                {"[listen]\ntcp = 127.0.0.1:\n", "test.conf:2", "listen.tcp"},
                {"[listen]\ntcp = 127.0.0.1:65536\n", "test.conf:2", "listen.tcp"},
                {"[listen]\ntcp = 127.0.0.1:7 7\n", "test.conf:2", "listen.tcp"},
                {"[models]\ndirectories = relative\n", "test.conf:2", "models.directories"},
                {"[models]\ndirectories = /a:b\n", "test.conf:2", "models.directories"},
                {"[limits]\ncopies = 0\n", "test.conf:2", "limits.copies"},
                {"[limits]\ncopies = 1025\n", "test.conf:2", "limits.copies"},
                {"[limits]\ncopies = 1K\n", "test.conf:2", "limits.copies"},
                {"[limits]\nbody_bytes = 5M\n", "test.conf:2", "limits.body_bytes"},
                {"[limits]\nmessage_bytes = 128K\n", "test.conf:2", "limits.message_bytes"},
                {"[device a]\nbackend = gpu\n", "test.conf:2", "device.backend"},
                {"[device a]\nmemory = mine\n", "test.conf:2", "device.memory"},
                {"[device a]\nisa = sse9\n", "test.conf:2", "device.isa"},
                {"[device a]\ndeny_ops = MUL_MAT,NOSUCH\n", "test.conf:2", "NOSUCH"},
                {"[device a]\ndeny_ops = ADD,\n", "test.conf:2", "comma"},
                {"[device a]\ndeny_ops = ADD>1x\n", "test.conf:2", "ADD>1x"},
                {"[device a]\ndeny_ops = ,ADD\n", "test.conf:2", "deny_ops"},
                {"[device a]\nthreads = two\n", "test.conf:2", "device.threads"},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_config config;
                struct hr_diag diag = {0};
                const hr_status status = read_text(cases[i].text, &config, &diag);

                if (status != HR_E_INVALID || !strstr(diag.words, cases[i].place) ||
                    !strstr(diag.words, cases[i].word))
                        hr_test_fail(__FILE__, __LINE__, "case %zu (%s): %s: %s", i, cases[i].text,
                                     hr_status_name(status), diag.words);
                hr_config_deinit(&config);
        }
}

HR_TEST(long_lines_and_zero_bytes_are_refused) {
        struct hr_config config;
        struct hr_diag diag = {0};
        char text[4096] = "[models]\ndirectories = /";

        memset(text + strlen(text), 'x', 3000);
        HR_EXPECT_EQ(read_text(text, &config, &diag), HR_E_INVALID);
        HR_EXPECT(strstr(diag.words, "test.conf:2"));
        hr_config_deinit(&config);
        hr_diag_clear(&diag);
        HR_EXPECT_OK(hr_config_init(&config, &diag), &diag);
        HR_EXPECT_EQ(
                hr_config_read_text(&config, "test.conf", "[daemon]\nspin\0 = 1us\n", 21, &diag),
                HR_E_INVALID);
        hr_config_deinit(&config);
}

HR_TEST(overrides) {
        struct hr_config config;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(read_text("[limits]\ncopies = 3\n[models]\ndirectories = /a:/b\n"
                               "[device cpu0]\nthreads = 1\n",
                               &config, &diag),
                     &diag);
        HR_EXPECT_OK(hr_config_set(&config, "limits.copies=5", &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&config, "limits.copies = 6 ", &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&config, "device.cpu0.threads=2", &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&config, "device.extra.memory=isolated", &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&config, "models.directories=/c", &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&config, "models.directories=/d", &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&config, "listen.unix=/tmp/a=b.sock", &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&config, "listen.tcp=[::1]:0", &diag), &diag);
        HR_EXPECT_EQ(hr_socket_port(&config.tcp.socket), 0);
        HR_EXPECT_OK(hr_config_set(&config, "listen.tcp=[::1]:98", &diag), &diag);
        HR_EXPECT_EQ(hr_socket_port(&config.tcp.socket), 98);
        HR_EXPECT_OK(hr_config_set(&config, "listen.tcp=localhost:99", &diag), &diag);
        HR_EXPECT_OK(hr_config_finish(&config, &diag), &diag);
        HR_EXPECT_EQ(config.limits.copies, 6);
        HR_EXPECT_EQ(config.device_count, 2);
        HR_EXPECT_EQ(config.devices[0].threads, 2);
        HR_EXPECT(config.devices[1].isolated);
        HR_EXPECT_EQ(config.directory_count, 2);
        HR_EXPECT_STREQ(config.directories[0], "/c");
        HR_EXPECT_STREQ(config.unix_path, "/tmp/a=b.sock");
        HR_EXPECT_EQ(hr_socket_port(&config.tcp.socket), 99);
        hr_config_deinit(&config);
}

HR_TEST(bad_overrides) {
        static const char *const cases[] = {
                "",
                "=",
                "limits",
                "limits=1",
                "limits.copies",
                "copies=1",
                "x.copies=1",
                "limits.nosuch=1",
                "limits.copies=x",
                "device.threads=1",
                ".copies=1",
                "device..threads=1",
                "device.a b.threads=1",
                "device.a.nosuch=1",
                "device.fit.threads=1",
                "daemon.=1",
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_config config;
                struct hr_diag diag = {0};

                HR_EXPECT_OK(hr_config_init(&config, &diag), &diag);
                if (hr_config_set(&config, cases[i], &diag) != HR_E_INVALID)
                        hr_test_fail(__FILE__, __LINE__, "'%s' was accepted", cases[i]);
                HR_EXPECT(strstr(diag.words, "--set"));
                hr_config_deinit(&config);
        }
}

HR_TEST(what_concerns_several_keys) {
        static const struct {
                const char *text, *word;
        } cases[] = {
                {"[listen]\nunix =\n", "listen.unix"},
                {"[listen]\ntcp = 0.0.0.0:7070\n", "insecure"},
                {"[listen]\ntcp = 192.168.0.1:7070\n", "insecure"},
                {"[listen]\ntcp = [::]:7070\n", "insecure"},
                {"[listen]\ntls = 127.0.0.1:7070\n[principal a]\ntoken_sha256 = " TOKEN "\n",
                 "tls.key"},
                {"[listen]\ntls = 127.0.0.1:7\n[tls]\ncertificate = /c\nkey = /k\n",
                 "needs a [principal"},
                {"[listen]\ntls = 127.0.0.1:7\n[tls]\ncertificate = /c\nkey = /k\n"
                 "[principal a]\nuid = 1\n",
                 "needs a [principal"},
                {"[principal a]\ncertificate = somebody\n", "tls.client_ca"},
                {"[principal a]\npermissions = run\n", "known by nothing"},
                {"[limits]\nbody_bytes = 1M\noutput_queue_bytes = 512K\n", "output_queue_bytes"},
                {"[daemon]\nmemory_pressure = sometimes\n", "memory_pressure"},
                {"[daemon]\nmemory_pressure = proc/pressure/memory\n", "memory_pressure"},
                {"[limits]\nbody_bytes = 1M\nupload_window_bytes = 512K\n", "upload_window_bytes"},
#ifdef HR_TEST_HAVE_BLAS
                {"[device c]\n[device b]\nbackend = blas\n", "last device"},
                {"[device b]\nbackend = blas\nmemory = isolated\n[device c]\n", "isolated"},
#endif
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_config config;
                struct hr_diag diag = {0};

                HR_EXPECT_OK(read_text(cases[i].text, &config, &diag), &diag);
                HR_EXPECT_EQ(hr_config_finish(&config, &diag), HR_E_INVALID);
                HR_EXPECT(strstr(diag.words, cases[i].word));
                hr_config_deinit(&config);
        }
}

HR_TEST(principals) {
        static const char text[] = "[listen]\ntls = 0.0.0.0:7071\ntcp = 10.0.0.1:7070\n"
                                   "insecure = yes\n"
                                   "[tls]\ncertificate = /c.pem\nkey = /k.pem\nclient_ca = /a.pem\n"
                                   "[principal people]\nuid = root, 1000\ngid = 0\n"
                                   "[principal far]\ntoken_sha256 = " TOKEN "\n"
                                   "certificate = A Name\npermissions = run,load, admin\n";
        const struct hr_config_principal *people, *far;
        struct hr_config config;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(read_whole(text, &config, &diag), &diag);
        HR_EXPECT(config.insecure && !config.tcp.is_loopback && !config.tls.is_loopback);
        HR_EXPECT_EQ(hr_socket_port(&config.tls.socket), 7071);
        HR_EXPECT_STREQ(config.tls_certificate, "/c.pem");
        HR_EXPECT_STREQ(config.tls_key, "/k.pem");
        HR_EXPECT_STREQ(config.tls_client_ca, "/a.pem");
        HR_EXPECT_EQ(config.principal_count, 2);
        people = &config.principals[0];
        far = &config.principals[1];
        HR_EXPECT_STREQ(people->name, "people");
        HR_EXPECT(people->uids.count == 2 && people->uids.ids[0] == 0 &&
                  people->uids.ids[1] == 1000);
        HR_EXPECT(people->gids.count == 1 && people->gids.ids[0] == 0 && !people->has_token);
        HR_EXPECT_EQ(people->permissions, HR_PERMIT_RUN | HR_PERMIT_LOAD);
        HR_EXPECT(far->has_token && far->token_digest[0] == 0x01 && far->token_digest[31] == 0xef);
        HR_EXPECT_STREQ(far->certificate, "A Name");
        HR_EXPECT_EQ(far->permissions, HR_PERMIT_ALL);
        hr_config_deinit(&config);
}

/* What is dumped reads back, and dumps to the same text. */
HR_TEST(dump_reads_back) {
        static const char text[] = "[daemon]\ndrain_timeout = 1500ms\n[models]\n"
                                   "directories = /a:/b\n[listen]\ntcp = [::1]:1\n"
                                   "[device a]\nmemory = isolated\ndeny_ops = ADD\n"
                                   "memory_cap = 1000\n[device b]\ndelay = 7us\n"
                                   "[principal p]\nuid = 3, 5\npermissions = admin, run\n"
                                   "[principal q]\ntoken_sha256 = " TOKEN "\n";
        struct hr_config config, again;
        struct hr_diag diag = {0};
        char *first = NULL, *second = NULL;
        size_t first_bytes = 0, second_bytes = 0;
        FILE *stream = open_memstream(&first, &first_bytes);

        HR_EXPECT_OK(read_whole(text, &config, &diag), &diag);
        hr_config_dump(&config, stream);
        fclose(stream);
        HR_EXPECT(strstr(first, "drain_timeout = 1500ms\n"));
        HR_EXPECT(strstr(first, "directories = /a\ndirectories = /b\n"));
        HR_EXPECT(strstr(first, "[device b]\n"));
        HR_EXPECT(strstr(first, "memory_cap = 1000\n"));
        HR_EXPECT(strstr(first, "uid = 3,5\n") && strstr(first, "permissions = run,admin\n"));
        HR_EXPECT(strstr(first, "token_sha256 = " TOKEN "\n"));
        HR_EXPECT_OK(read_whole(first, &again, &diag), &diag);
        stream = open_memstream(&second, &second_bytes);
        hr_config_dump(&again, stream);
        fclose(stream);
        HR_EXPECT_STREQ(second, first);
        free(first);
        free(second);
        hr_config_deinit(&config);
        hr_config_deinit(&again);
}

HR_TEST(files) {
        char path[] = "/tmp/hr-config-XXXXXX";
        const int fd = mkstemp(path);
        struct hr_config config;
        struct hr_diag diag = {0};

        HR_EXPECT(fd >= 0 && write(fd, "[daemon]\nbad = 1\n", 17) == 17);
        HR_EXPECT_OK(hr_config_init(&config, &diag), &diag);
        HR_EXPECT_EQ(hr_config_read_file(&config, path, &diag), HR_E_INVALID);
        HR_EXPECT(strstr(diag.words, path) && strstr(diag.words, ":2"));
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_config_read_file(&config, "/nonexistent", &diag), HR_E_NOT_FOUND);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_config_read_file(&config, "/tmp", &diag), HR_E_NOT_FOUND);
        hr_config_deinit(&config);
        close(fd);
        unlink(path);
}

static void write_file(const char *folder, const char *name, const char *text) {
        char path[128];
        FILE *file;

        snprintf(path, sizeof path, "%s/%s", folder, name);
        file = fopen(path, "we");
        HR_EXPECT(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

HR_TEST(fragments_replace_what_was_said_before_them) {
        char root[] = "/tmp/hr-config-XXXXXX", main_file[48], folder[64], path[128];
        const char *const names[] = {"10-b.conf", "9-c.conf", ".hidden.conf", "note.txt", ".conf"};
        struct hr_config config;
        struct hr_diag diag = {0};

        HR_EXPECT(mkdtemp(root) != NULL);
        snprintf(main_file, sizeof main_file, "%s/main.conf", root);
        snprintf(folder, sizeof folder, "%s.d", main_file);
        write_file(root, "main.conf",
                   "[daemon]\nspin = 1us\nlog_level = debug\n[models]\ndirectories = /a\n"
                   "directories = /b\n[device one]\nbackend = cpu\nthreads = 1\nspin = 7us\n");
        HR_EXPECT_OK(hr_config_init(&config, &diag), &diag);
        HR_EXPECT_OK(hr_config_read_file(&config, main_file, &diag), &diag);
        HR_EXPECT_OK(hr_config_read_fragments(&config, main_file, &diag), &diag); /* no folder */
        HR_EXPECT_EQ(config.spin_ns, 1000);

        HR_EXPECT_EQ(mkdir(folder, 0700), 0);
        /* By bytes, "10" comes before "9". */
        write_file(folder, names[0], "[daemon]\nspin = 2us\n[device one]\nthreads = 2\n"
                                     "[device two]\nbackend = cpu\nthreads = 5\n");
        write_file(folder, names[1], "[daemon]\nspin = 3us\n[models]\ndirectories = /c\n"
                                     "directories = /d\n[principal p]\nuid = 7\n");
        for (int i = 2; i < 5; i++)
                write_file(folder, names[i], "nonsense\n");
        HR_EXPECT_OK(hr_config_read_fragments(&config, main_file, &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&config, "models.directories=/e", &diag), &diag);
        HR_EXPECT_EQ(config.spin_ns, 3000);
        HR_EXPECT_EQ(config.log_level, HR_LOG_DEBUG);
        HR_EXPECT_EQ(config.directory_count, 1);
        HR_EXPECT_STREQ(config.directories[0], "/e");
        HR_EXPECT_EQ(config.device_count, 2);
        HR_EXPECT_EQ(config.devices[0].threads, 2);
        HR_EXPECT_EQ(config.devices[0].spin_ns, 7000);
        HR_EXPECT_EQ(config.devices[1].threads, 5);
        HR_EXPECT_EQ(config.principal_count, 1);
        HR_EXPECT_OK(hr_config_finish(&config, &diag), &diag);
        hr_config_deinit(&config);

        /* What is wrong in one is told with its name, and twice in one file stays wrong. */
        write_file(folder, names[1], "[device two]\nthreads = 3\n[device two]\nspin = 1us\n");
        HR_EXPECT_OK(hr_config_init(&config, &diag), &diag);
        HR_EXPECT_OK(hr_config_read_file(&config, main_file, &diag), &diag);
        HR_EXPECT_EQ(config.directory_count, 2);
        HR_EXPECT_EQ(hr_config_read_fragments(&config, main_file, &diag), HR_E_INVALID);
        HR_EXPECT(strstr(diag.words, "9-c.conf:3") && strstr(diag.words, "second section"));
        hr_config_deinit(&config);
        for (int i = 0; i < 5; i++) {
                snprintf(path, sizeof path, "%s/%s", folder, names[i]);
                HR_EXPECT_EQ(unlink(path), 0);
        }
        HR_EXPECT_EQ(rmdir(folder), 0);
        HR_EXPECT_EQ(unlink(main_file), 0);
        HR_EXPECT_EQ(rmdir(root), 0);
}

/* ---- The example file: every key, its default, and examples that work
 * ------------------------- */

static char *read_example(void) {
        FILE *file = fopen(HR_TEST_EXAMPLE_CONFIG, "re");
        char *text = calloc(1, 1 << 16);

        HR_EXPECT(file && fread(text, 1, (1 << 16) - 1, file) > 0);
        fclose(file);
        return text;
}

/* Takes away the # in front of keys and headers; comments proper have a blank behind it. */
static void switch_on(char *text) {
        char *to = text;

        for (char *from = text; *from != '\0'; from++) {
                const bool at_start = from == text || from[-1] == '\n';

                if (!(at_start && from[0] == '#' && from[1] != ' ' && from[1] != '\n'))
                        *to++ = *from;
        }
        *to = '\0';
}

static char *dump_text(const struct hr_config *config) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *stream = open_memstream(&text, &bytes);

        hr_config_dump(config, stream);
        fclose(stream);
        return text;
}

HR_TEST(example_shows_every_key_with_its_default) {
        char *text = read_example(), *examples = strstr(text, "# Matrix products"), *shown, *real;
        struct hr_config config, defaults;
        struct hr_diag diag = {0};

        HR_EXPECT(examples);
        *examples = '\0';
        switch_on(text);
        HR_EXPECT_OK(read_whole(text, &config, &diag), &diag);
        HR_EXPECT_OK(
                read_whole("[models]\ndirectories = /var/lib/headrace/models\n"
                           "cache_directory = /var/cache/headrace\n[device cpu0]\n",
                           &defaults, &diag),
                &diag);
        shown = dump_text(&config);
        real = dump_text(&defaults);
        HR_EXPECT_STREQ(shown, real);
        for (char *line = strtok(real, "\n"); line; line = strtok(NULL, "\n")) {
                char key[64] = "\n";

                strncat(key, line, strcspn(line, " "));
                if (line[0] != '[' && !strstr(text, strcat(key, " =")))
                        hr_test_fail(__FILE__, __LINE__, "the example does not show%s", key);
        }
        free(shown);
        free(real);
        free(text);
        hr_config_deinit(&config);
        hr_config_deinit(&defaults);
}

HR_TEST(example_devices_are_accepted) {
        char *text = read_example(), *block = strstr(text, "# Matrix products"), *end;
        unsigned count = 0;

        HR_EXPECT(block);
        switch_on(block);
        for (; *block != '\0'; block = end) {
                struct hr_config config;
                struct hr_diag diag = {0};

                end = strstr(block, "\n\n");
                end = end ? end + 2 : block + strlen(block);
                if (*end != '\0')
                        end[-1] = '\0';
                count++;
#ifndef HR_TEST_HAVE_BLAS
                if (strstr(block, "backend = blas"))
                        continue;
#endif
                HR_EXPECT_OK(read_whole(block, &config, &diag), &diag);
                HR_EXPECT(config.device_count >= 2 || config.principal_count >= 2);
                hr_config_deinit(&config);
        }
        HR_EXPECT(count >= 2);
        free(text);
}

HR_TEST(deinit_of_zeroed) {
        struct hr_config config = {0};

        hr_config_deinit(&config);
        hr_config_deinit(&config);
}
