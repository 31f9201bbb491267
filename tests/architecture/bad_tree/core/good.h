#pragma once
namespace core {}
