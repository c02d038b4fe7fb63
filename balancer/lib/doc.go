// Package lib is the folder of small packages that store, dataplane and cmd share, and that know
// nothing of services: atomicfile replaces files, sockerr names socket errors on every system, wake
// signals a goroutine. The model imports none of them.
package lib
