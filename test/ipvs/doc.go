// Package ipvs loads IPVS for tests and their runners, and reports whether this kernel has it. It
// does not use IPVS otherwise.
package ipvs
