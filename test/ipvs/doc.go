// Package ipvs reports to tests and their runners whether this kernel has IPVS. It does not use
// IPVS.
package ipvs
