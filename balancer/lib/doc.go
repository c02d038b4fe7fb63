// Package lib is the folder of small packages that store, dataplane and cmd share, and that do not
// know services. atomicfile replaces files, sockerr names socket errors on every system, and wake
// signals a goroutine. The model imports none of them.
package lib
