// Typecheck says whether programs compile for other systems, without compiling anything:
//
//	go run ./test/typecheck windows darwin -- ./cmd/vipd ./cmd/vipctl
//
// It has go list name the files of each package for a system, with all that it imports, and
// go/types look at them from the bottom up: at all of this module's code, and at what that may use
// of others. What a compiler refuses beyond the types, as an assembler's code, remains to a build.
package main
