package ipvsnl

// What tests outside the package use of its kit.
var (
	NewKernel = kernel
	Empty     = empty
	Look      = look
	Addresses = addresses
)

// MaxIdle is maxIdle.
const MaxIdle = maxIdle
