// The boundary: exceptions become codes here and nowhere else.
#ifndef FLASHOPTIM_CAPI_GUARD_H_
#define FLASHOPTIM_CAPI_GUARD_H_

#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "flashoptim/checkpoint.h"
#include "flashoptim/errors.h"
#include "flashoptim/flashoptim.h"

namespace flashoptim::capi {

/// Keeps a message for flashoptim_last_error; a long one is cut. Returns the code.
flashoptim_status Report(flashoptim_status code, const char* message) noexcept;

/// Calls body() and turns what it throws into a code and a message.
template <class Body>
flashoptim_status Guarded(const Body& body) noexcept {
  try {
    body();
    return FLASHOPTIM_OK;
  } catch (const NonfiniteGradientError& error) {
    return Report(FLASHOPTIM_NONFINITE_GRADIENT, error.what());
  } catch (const DeviceError& error) {
    return Report(FLASHOPTIM_DEVICE_ERROR, error.what());
  } catch (const FileError& error) {
    return Report(FLASHOPTIM_FILE_ERROR, error.what());
  } catch (const std::invalid_argument& error) {
    return Report(FLASHOPTIM_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    return Report(FLASHOPTIM_OUT_OF_MEMORY,
                  "not enough memory on the host; use fewer or smaller tensors, or bring the "
                  "memory of the state");
  } catch (const std::exception& error) {
    return Report(FLASHOPTIM_INTERNAL_ERROR, error.what());
  } catch (...) {
    return Report(FLASHOPTIM_INTERNAL_ERROR, "an exception of an unknown type; please report it");
  }
}

/// Throws std::invalid_argument if a pointer is null.
inline void CheckPointer(const void* pointer, const char* name) {
  if (pointer == nullptr) {
    throw std::invalid_argument(std::string(name) + " is null; pass its address");
  }
}

/// Throws std::invalid_argument if a struct is null or not one of this header.
template <class Struct>
void CheckStruct(const Struct* value, const char* name) {
  CheckPointer(value, name);
  if (value->struct_size != sizeof(Struct)) {
    throw std::invalid_argument(
        std::string(name) + " has struct_size " + std::to_string(value->struct_size) + ", not " +
        std::to_string(sizeof(Struct)) +
        "; start from its initialiser, and compile with the header of this library");
  }
}

}  // namespace flashoptim::capi

#endif  // FLASHOPTIM_CAPI_GUARD_H_
