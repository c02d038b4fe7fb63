package ipvsnl

// These are exports for tests outside the package.
var (
	NewKernel = kernel
	Empty     = empty
	Look      = readServers
	Addresses = addresses
)
