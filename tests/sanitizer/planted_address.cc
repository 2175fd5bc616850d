// A read of freed memory or a leak, as the argument says: shows that the address sanitizer of this build can see.
#include <cstring>

int main(int argc, char** argv) {
  int* volatile values = new int[4]();
  if (argc == 2 && std::strcmp(argv[1], "leak") == 0) {
    values = nullptr;
    return 0;
  }
  delete[] values;
  return values[1];
}
