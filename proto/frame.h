/*
 * Frames: a 32-byte little-endian header, a protobuf message, a raw body. No I/O and no allocation
 * here; the header is checked in full before anything else is looked at.
 *
 *   0 magic "HR" | 2 version 1 | 3 type | 4 flags | 6 n_fds | 8 request id | 16 message bytes
 *   20 body bytes | 24 timeout in ms, or the status code of an error | 28 CRC-32C of bytes 0..27
 */
#pragma once

#include "core/status.h"

#define HR_FRAME_HEADER_BYTES 32
#define HR_FRAME_VERSION 1
#define HR_FRAME_FDS_MAX 16
#define HR_FRAME_REPLY 0x80U
#define HR_FRAME_PUSH_ID (UINT64_C(1) << 63)

#define HR_FRAME_END 1U
#define HR_FRAME_MORE 2U
#define HR_FRAME_ERROR 4U
#define HR_FRAME_NOREPLY 8U
#define HR_FRAME_FDS 16U
#define HR_FRAME_FLAGS_ALL 31U

typedef enum hr_frame_type {
        HR_FRAME_HELLO = 1,
        HR_FRAME_PING = 2,
        HR_FRAME_CANCEL = 3,
        HR_FRAME_CREDIT = 4,
        HR_FRAME_DATA = 5,
        HR_FRAME_GOAWAY = 6,
        HR_FRAME_PROGRESS = 7,
        HR_FRAME_DEVICES = 16,
        HR_FRAME_OPS = 17,
        HR_FRAME_WEIGHTS_QUERY = 32,
        HR_FRAME_WEIGHTS_PUT = 33,
        HR_FRAME_WEIGHTS_PUT_FD = 34,
        HR_FRAME_WEIGHTS_LOAD = 35,
        HR_FRAME_WEIGHTS_LIST = 36,
        HR_FRAME_WEIGHTS_DROP = 37,
        HR_FRAME_WEIGHTS_TENSORS = 38,
        HR_FRAME_WEIGHTS_PURGE = 39,
        HR_FRAME_STATE_ALLOC = 48,
        HR_FRAME_STATE_READ = 49,
        HR_FRAME_STATE_WRITE = 50,
        HR_FRAME_STATE_SAVE = 51,
        HR_FRAME_STATE_RESTORE = 52,
        HR_FRAME_STATE_FORK = 53,
        HR_FRAME_STATE_FREE = 54,
        HR_FRAME_REGION_ADD = 64,
        HR_FRAME_REGION_DROP = 65,
        HR_FRAME_SUBMIT = 80,
        HR_FRAME_RESERVE = 81,
        HR_FRAME_EXPLAIN = 82,
        HR_FRAME_RELEASE = 83,
        HR_FRAME_RUN = 96,
        HR_FRAME_SEQUENCE = 97,
        HR_FRAME_SYNC = 98,
        HR_FRAME_TAP = 99,
        HR_FRAME_STATUS = 112,
        HR_FRAME_STATS = 113,
        HR_FRAME_QUOTA = 114,
        HR_FRAME_TRACE = 115,
        HR_FRAME_RELOAD = 116,
        HR_FRAME_DRAIN = 117,
        HR_FRAME_EVICT = 118,
        HR_FRAME_HEALTH = 119,
        HR_FRAME_METRICS = 120,
        HR_FRAME_SESSIONS = 121,
        HR_FRAME_PLANS = 122,
        HR_FRAME_QUOTAS = 123,
} hr_frame_type;

struct hr_frame_header {
        uint8_t type;
        uint16_t flags;
        uint16_t n_fds;
        uint64_t request_id;
        uint32_t message_bytes;
        uint32_t body_bytes;
        uint32_t timeout_ms; /* status code in frames flagged ERROR */
};

/* What a peer may announce at this point of the conversation. */
struct hr_frame_limits {
        uint32_t message_bytes_max;
        uint32_t body_bytes_max;
        uint16_t fds_max;
};

void hr_frame_header_encode(const struct hr_frame_header *header,
                            uint8_t ret_bytes[HR_FRAME_HEADER_BYTES]);
/* HR_E_PROTOCOL with reason BAD_MAGIC, BAD_VERSION, BAD_HEADER_CRC, BAD_TYPE, BAD_FLAGS, BAD_ID,
 * MESSAGE_TOO_LONG, BODY_TOO_LONG or BAD_FDS. */
HR_NODISCARD hr_status hr_frame_header_decode(const uint8_t bytes[HR_FRAME_HEADER_BYTES],
                                              const struct hr_frame_limits *limits,
                                              struct hr_diag *diag,
                                              struct hr_frame_header *ret_header);
/* CRC-32C (Castagnoli), as in RFC 3720. */
uint32_t hr_crc32c(const void *bytes, size_t size);
/* The same with the processor's instruction, which it must have, or by table only. */
uint32_t hr_crc32c_with(bool instructions, const void *bytes, size_t size);
