// Typecheck checks whether programs compile for other systems, without compiling them:
//
//	go run ./test/typecheck windows darwin -- ./cmd/vipd ./cmd/vipctl
//
// It uses go list to name the files of each package and its imports for a system. go/types then
// checks them bottom-up: all code of this module, and the exported parts of other modules. Errors
// that a compiler finds beyond the types, such as in assembler code, need a build.
package main
