// Package ipvs answers one question for tests and for what runs them: does this kernel have IPVS? What uses IPVS is
// elsewhere.
package ipvs
