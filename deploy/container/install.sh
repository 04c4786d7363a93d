#!/bin/sh
# Makes a virtual environment with all that Stoker needs, as requirements.lock beside this has it:
#   install.sh FOLDER cpu INDEX   torch without CUDA, from the index of such builds
#   install.sh FOLDER cuda        torch as the lock has it, with the CUDA that it wants
# The environment has no pip: nothing is installed into an image that runs.
set -eu
folder=$1
torch=$2

install() {
    python -m pip --python "$folder/bin/python" install --no-deps "$@"
}

python -m venv --without-pip "$folder"
case $torch in
cpu)
    # That build has another digest than the lock knows, and the same version.
    install --index-url "$3" "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.lock)"
    awk '/^[^ #]/ { wanted = !/^(torch|triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)==/ } wanted' \
        requirements.lock >wanted.txt
    ;;
cuda)
    cp requirements.lock wanted.txt
    ;;
*)
    echo "TORCH is cpu or cuda, not '$torch'." >&2
    exit 2
    ;;
esac
install --require-hashes --requirement wanted.txt
python -m pip --python "$folder/bin/python" check
