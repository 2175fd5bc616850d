// A signed overflow: shows that the undefined-behaviour sanitizer of this build can see.
#include <climits>

int main(int argc, char**) {
  int volatile largest = INT_MAX;
  return largest + argc > 0;
}
