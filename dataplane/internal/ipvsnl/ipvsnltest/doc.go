// Package ipvsnltest provides an in-memory IPVS for tests of packages that use IPVS. It refuses the
// same changes as the kernel. TestIPVSHistories in package ipvsnl compares it with the kernel.
package ipvsnltest
