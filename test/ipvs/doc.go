// Package ipvs answers one question for tests and their runners: does this kernel have IPVS? It
// does not use IPVS.
package ipvs
