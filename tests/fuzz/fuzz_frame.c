/* Any 32 bytes as a header: refused with a reason, or a header that encodes back to the same bytes.
 */
#include <string.h>

#include "proto/frame.h"
#include "tests/fuzz/plant.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
        static const struct hr_frame_limits limits = {65536, 4 << 20, HR_FRAME_FDS_MAX};
        uint8_t given[HR_FRAME_HEADER_BYTES] = {0};
        uint8_t again[HR_FRAME_HEADER_BYTES];

        memcpy(given, bytes, HR_MIN(size, sizeof given));
        /* As it is, and with the checksum that hides all else from a fuzzer put right. */
        for (int round = 0; round < 2; round++) {
                struct hr_frame_header header;
                struct hr_diag diag = {0};

                if (hr_frame_header_decode(given, &limits, &diag, &header) == HR_OK) {
                        HR_ASSERT(header.type != 0 && header.request_id != 0);
                        HR_ASSERT(header.message_bytes <= limits.message_bytes_max);
                        HR_ASSERT(header.body_bytes <= limits.body_bytes_max);
                        hr_frame_header_encode(&header, again);
                        HR_ASSERT(memcmp(given, again, sizeof again) == 0);
                        HR_PLANT(header.type == HR_FRAME_RUN);
                } else {
                        HR_ASSERT(diag.status == HR_E_PROTOCOL && diag.reason);
                }
                for (int i = 0; i < 4; i++)
                        given[28 + i] = (uint8_t) (hr_crc32c(given, 28) >> (8 * i));
                given[0] = 'H';
                given[1] = 'R';
                given[2] = HR_FRAME_VERSION;
                for (int i = 0; i < 4; i++)
                        given[28 + i] = (uint8_t) (hr_crc32c(given, 28) >> (8 * i));
        }
        return 0;
}
