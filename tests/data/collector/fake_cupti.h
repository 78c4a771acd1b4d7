// What the fake CUPTI offers to programs that play a driver.
#pragma once

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>

#include <cstddef>
#include <cstdint>

extern "C" {
void fake_record(const void* record);  // as the driver does when something has ended
void fake_context_created();
void fake_drop(std::size_t records);
int fake_enabled();  // how many kinds of activities are recorded
int fake_buffer_is_out();
}
