// Report runs go test and ends with what a reader of a long log wants: the tests that were skipped
// with their reasons, those that failed with their output, and plain last lines with the counts.
//
//	report [-kernel | -ipvs] [-again] [FLAGS OF GO TEST] [PACKAGES]
//
// Flags of go test that have a value are written -flag=value; without packages it is all of them.
// With -kernel it chooses those whose tests use vipd/test/lab, which means real kernel objects;
// with -ipvs, the tests that need IPVS alone. The exit code is 1 when anything failed. With -again,
// up to three tests that failed run three times more, each alone; those that pass each time are
// unsteady: the report names them and their output, and does not fail for them.
//
// Tests that need IPVS are those whose names begin with TestIPVS. Where this machine's kernel has
// IPVS or can load it, and the tests run as root, go test runs them like all others. Elsewhere it
// leaves them out, and beside it all of them run in a guest (vipd/test/guest/vm) whose kernel has
// it: their packages' test binaries are built here, and this program, which the guest sees like
// every file, starts them there and sends back what they do. Those that take longest run in pieces,
// each in a process and network namespaces of its own. The report counts both. Where there can be
// no guest either they are skipped, and listed with the reason.
package main
