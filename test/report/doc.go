// Report runs go test, and prints a summary: skipped tests with their reasons, failed tests with
// their output, and final lines with the counts.
//
//	report [-kernel | -ipvs] [-again] [FLAGS OF GO TEST] [PACKAGES]
//
// Flags of go test that have a value are written -flag=value; without packages, all packages run.
// With -kernel it selects packages whose tests use vipd/test/lab, which means real kernel objects;
// with -ipvs, only the tests that need IPVS. The exit code is 1 if anything failed. With -again, up
// to eight failed tests run two more times, each alone. Tests that pass both times are unsteady:
// the report shows them with their output, and does not fail because of them.
//
// Tests that need IPVS are those whose names begin with TestIPVS. If this machine's kernel has IPVS
// or can load it, and root runs the tests, go test runs them like all other tests. Otherwise go
// test omits them, and they run concurrently in a guest (vipd/test/guest/vm) whose kernel has IPVS.
// Their test binaries are built here; this program starts them in the guest and returns their
// events. The slowest tests run in pieces, each in its own process and network namespaces. The
// report counts the tests here and in the guest. If no guest can run either, the tests are skipped,
// and listed with the reason.
package main
