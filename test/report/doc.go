// Report runs go test and ends with what a reader of a long log wants: the tests that were skipped with their reasons,
// those that failed with their output, and one plain last line with the counts.
//
//	report [-kernel] [FLAGS OF GO TEST] PACKAGES
//
// With -kernel it chooses the packages by itself: those whose tests use vipd/test/lab, which means real kernel
// objects. The exit code is 1 when anything failed.
package main
