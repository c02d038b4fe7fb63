// Package ipvs carries frontends out by virtual servers of the kernel's IPVS.
package ipvs
