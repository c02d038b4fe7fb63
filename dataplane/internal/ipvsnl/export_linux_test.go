package ipvsnl

// These are exports for the tests in package ipvsnl_test.
var (
	NewKernel = kernel
	Empty     = empty
	Look      = readServers
	Addresses = addresses
)
