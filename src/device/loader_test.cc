// SPDX-License-Identifier: Apache-2.0
// Devices by name, several that share the type of extensions, and tables from older headers.
#include "loader.h"

#include <cstring>

#include "anyop/anyop.h"
#include "tests/check.h"

namespace {

AnyopDevice MakeDevice(const char* name) {
  AnyopDevice device = *AnyopFindDeviceByName("host");
  device.name = name;
  return device;
}

TEST(TheHostIsThere) {
  const AnyopDevice* host = AnyopFindDeviceByName("host");
  CHECK(host && host->device_type == ANYOP_DEVICE_TYPE_EXTENSION);
  CHECK_EQ(AnyopRegisterDevice(host), kAnyopOk);
  CHECK(!AnyopFindDeviceByName("hos") && !AnyopFindDeviceByName(nullptr));
  CHECK(std::strstr(AnyopLastError(), "there is no device ''; there are host"));
}

TEST(BadTablesAreNamed) {
  AnyopDevice bad = MakeDevice("bad chip");
  CHECK_EQ(AnyopRegisterDevice(&bad), kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "has no name of 1 to 63 letters"));
  bad = MakeDevice("host");
  CHECK_EQ(AnyopRegisterDevice(&bad), kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "there is another device host already"));
  bad = MakeDevice("bad");
  bad.size = 40;
  CHECK_EQ(AnyopRegisterDevice(&bad), kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "has 40 bytes, expected 48 or more"));
  bad = MakeDevice("bad");
  bad.leave = nullptr;
  CHECK_EQ(AnyopRegisterDevice(&bad), kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "device bad lacks leave"));
  CHECK(!AnyopFindDeviceByName("bad"));
}

TEST(ExtensionsShareTheirType) {
  static const AnyopDevice one = MakeDevice("one"), two = MakeDevice("two");
  CHECK_EQ(AnyopRegisterDevice(&one), kAnyopOk);
  CHECK_EQ(AnyopUseDevice(&two), kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "the device to use was not registered"));
  CHECK_EQ(AnyopRegisterDevice(&two), kAnyopOk);
  CHECK(AnyopFindDeviceByName("one") == &one && AnyopFindDeviceByName("two") == &two);
  CHECK(!AnyopFindDevice(ANYOP_DEVICE_TYPE_EXTENSION));
  CHECK_EQ(AnyopUseDevice(&two), kAnyopOk);
  CHECK_EQ(AnyopUseDevice(&two), kAnyopOk);
  CHECK(AnyopFindDevice(ANYOP_DEVICE_TYPE_EXTENSION) == &two);
  CHECK_EQ(AnyopUseDevice(&one), kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "device one has device type 12, which device two has"));
}

TEST(AnOlderTableHasWhatItHas) {
  static AnyopDevice older = MakeDevice("older");
  older.size = offsetof(AnyopDevice, properties);  // of anyop 0.1
  CHECK_EQ(AnyopRegisterDevice(&older), kAnyopOk);
  CHECK(anyop::HasFunction(&older, &AnyopDevice::elapsed_ms));
  CHECK(!anyop::HasFunction(&older, &AnyopDevice::properties));
  older.versions = nullptr;
  CHECK(!anyop::HasFunction(&older, &AnyopDevice::versions));
}

}  // namespace
